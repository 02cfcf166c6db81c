"""top_k, top_p and min_p: what stays and how likely it is, against transformers and at the edges."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from headrace.engine.sampling.draw import candidates, draw
from headrace.engine.sampling.vocab_blocks import peak
from headrace.ipc.messages import SamplingParams


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def logits(seed: int, rows: int, vocab: int, spread: float) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def probabilities(rows: torch.Tensor, samplings: Sequence[SamplingParams]) -> torch.Tensor:
    """What is drawn with which probability, float64 [rows, vocab]; 0 for what is left out."""
    dense = torch.zeros(rows.shape, dtype=torch.float64)
    for some in candidates(rows, peak(rows)[1], samplings):
        weights = some.weights.double() / some.weights.double().sum(-1, keepdim=True)
        dense[some.rows] = weights if some.ids is None else dense[some.rows].scatter(1, some.ids, weights)
    return dense


def kept(row: torch.Tensor, sampling: SamplingParams) -> set[int]:
    return set(probabilities(row, [sampling])[0].nonzero()[:, 0].tolist())


def warped(row: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """transformers' probabilities for one row [1, vocab], in its own order of warpers."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k > 0:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return torch.softmax(warpers(torch.zeros(1, 1, dtype=torch.int64), row), -1)[0]


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 90},
    {"top_k": 700},
    {"top_k": 100_000},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 300, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 2.0, "top_p": 0.95, "min_p": 0.1},
    {"top_k": 40, "min_p": 0.2},
]


@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("vocab", [5, 128, 1000, 12_801])
def test_the_same_ids_stay_with_the_same_probabilities_as_in_transformers(vocab: int, spread: float) -> None:
    rows = logits(vocab, len(FILTERS), vocab, spread)
    samplings = [params(**fields) for fields in FILTERS]
    ours = probabilities(rows, samplings)
    for row, sampling in enumerate(samplings):
        theirs = warped(rows[row : row + 1], sampling).double()
        differing = (ours[row] > 0) != (theirs > 0)
        if sampling.top_p < 1:
            # At the very edge of a nucleus two sums of float32 may part by one token.
            assert int(differing.sum()) <= 1, sampling
            assert theirs[differing].sum() + ours[row][differing].sum() <= 0.02, sampling
            ours[row][differing] = 0
            theirs[differing] = 0
            ours[row] /= ours[row].sum()
            theirs = theirs / theirs.sum()
        else:
            assert not differing.any(), sampling
        torch.testing.assert_close(ours[row], theirs, rtol=1e-4, atol=1e-7)


def test_rows_do_not_depend_on_each_other() -> None:
    rows = logits(2, len(FILTERS), 5003, 1.0)
    samplings = [params(**fields) for fields in FILTERS]
    together = probabilities(rows, samplings)
    for row, sampling in enumerate(samplings):
        assert torch.equal(together[row], probabilities(rows[row : row + 1], [sampling])[0])


@pytest.mark.parametrize("top_k", [-1, 300, 301, 1 << 40])
def test_top_k_of_the_vocabulary_or_more_keeps_all(top_k: int) -> None:
    assert kept(logits(3, 1, 300, 1.0), params(top_k=top_k)) == set(range(300))


@pytest.mark.parametrize("top_p", [1e-300, 1e-9, 1e-3])
def test_a_tiny_top_p_keeps_the_largest(top_p: float) -> None:
    row = logits(4, 1, 3000, 3.0)
    assert kept(row, params(top_p=top_p)) == {int(row.argmax())}


def test_top_p_1_keeps_all() -> None:
    assert kept(logits(5, 1, 3000, 1.0), params(top_p=1.0)) == set(range(3000))


def test_top_p_just_below_1_leaves_out_nothing_that_counts() -> None:
    row = logits(6, 1, 3000, 1.0)
    left = probabilities(row, [params(top_p=1 - 1e-12)])[0]
    torch.testing.assert_close(left, row[0].double().softmax(-1), rtol=1e-5, atol=1e-9)


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    row = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # Of the two largest, 4/7 and 3/7.
    assert kept(row, params(top_k=2, top_p=0.57)) == {0}
    assert kept(row, params(top_k=2, top_p=0.58)) == {0, 1}


def test_top_p_is_no_share_of_what_min_p_left() -> None:
    row = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # Of all, the first has 0.4 and the first two 0.7. Were the last left out before, they had 0.44 and 0.78.
    assert kept(row, params(min_p=0.3, top_p=0.42)) == {0, 1}
    assert kept(row, params(min_p=0.3, top_p=0.75)) == {0, 1, 2}


def test_min_p_compares_after_temperature() -> None:
    row = torch.tensor([[0.0, -1.0, -2.0, -4.0]])
    assert kept(row, params(min_p=0.1)) == {0, 1, 2}
    assert kept(row, params(min_p=0.1, temperature=2.0)) == {0, 1, 2, 3}
    assert kept(row, params(min_p=0.1, temperature=0.5)) == {0, 1}


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.999}, {"top_k": 9}], ids=str)
def test_min_p_1_keeps_the_largest_and_its_equals(fields: dict[str, Any]) -> None:
    row = torch.tensor([[1.0, 3.0, 2.0, 3.0] * 3])
    assert kept(row, params(min_p=1.0, **fields)) == {1, 3, 5, 7, 9, 11}


@pytest.mark.parametrize("vocab", [10, 4000])
@pytest.mark.parametrize("top_k", [1, 7, 60])
def test_where_top_k_ends_among_equals_the_lowest_ids_stay(top_k: int, vocab: int) -> None:
    row = torch.zeros(1, vocab)
    assert kept(row, params(top_k=top_k)) == set(range(min(top_k, vocab)))
    row[0, vocab - 1] = 1.0
    assert kept(row, params(top_k=top_k)) == {vocab - 1, *range(min(top_k, vocab) - 1)}


@pytest.mark.parametrize("vocab", [10, 4000])
def test_where_top_p_ends_among_equals_the_lowest_ids_stay(vocab: int) -> None:
    assert kept(torch.zeros(1, vocab), params(top_p=0.499)) == set(range(math.ceil(0.499 * vocab)))


def test_top_p_is_a_share_of_no_more_than_top_k_ids_where_these_end_among_equals() -> None:
    assert kept(torch.zeros(1, 4000), params(top_k=300, top_p=0.499)) == set(range(150))


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_a_share_of_0_and_one_just_below_1_give_an_id_that_stays(fields: dict[str, Any]) -> None:
    row = logits(7, 1, 2999, 2.0)
    allowed = kept(row, params(**fields))
    for share in (0.0, 1 - 2**-53):
        drawn = draw(row, peak(row)[1], [params(**fields)], torch.tensor([share], dtype=torch.float64))
        assert int(drawn) in allowed


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_even_shares_draw_each_id_as_often_as_it_is_likely(fields: dict[str, Any]) -> None:
    row, count = logits(8, 1, 400, 2.0), 2000
    sampling = params(**fields)
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    many = row.expand(count, -1)
    drawn = torch.bincount(draw(many, peak(many)[1], [sampling] * count, shares), minlength=400)
    # Each id owns one stretch of the shares, so its count is off by less than one.
    expected = probabilities(row, [sampling])[0] * count
    assert (drawn - expected).abs().max() <= 1.001


# Few different values: equals everywhere, also where a look, a nucleus or top_k ends.
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.125, 0.25, 2.0, float("-inf")]), min_size=0, max_size=700),
    st.floats(0.01, 10),
    st.floats(0.01, 1),
    st.one_of(st.just(-1), st.integers(1, 800)),
    st.sampled_from([0.0, 0.1, 0.9]),
)
def test_the_ids_that_stay_are_the_beginning_of_the_sorted_row(
    values: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    row = torch.tensor([[*values, 2.0]])
    sampling = params(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    ours = probabilities(row, [sampling])[0]
    order = torch.sort(row[0], descending=True, stable=True).indices
    count = int((ours > 0).sum())
    assert set(ours.nonzero()[:, 0].tolist()) == set(order[:count].tolist())
    expected = _sorted_formula(row[0], order, sampling)
    # A token more or less where a sum meets top_p within rounding.
    lengths = [int((_sorted_formula(row[0], order, sampling, slack) > 0).sum()) for slack in (-1e-6, 1e-6)]
    assert lengths[0] <= count <= lengths[1]
    if count == int((expected > 0).sum()):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-9)


def _sorted_formula(
    row: torch.Tensor, order: torch.Tensor, sampling: SamplingParams, slack: float = 0.0
) -> torch.Tensor:
    """The definition over the whole sorted row in float64."""
    weights = ((row[order].double() - 2.0) / sampling.temperature).exp()
    if sampling.top_k > 0:
        weights[sampling.top_k :] = 0
    before = weights.cumsum(-1) - weights
    weights[before >= (sampling.top_p + slack) * weights.sum()] = 0
    weights[weights < sampling.min_p * (1 - slack)] = 0
    dense = torch.zeros(len(row), dtype=torch.float64)
    dense[order] = weights / weights.sum()
    return dense
