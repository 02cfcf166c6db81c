"""From logits to tokens: what greedy is, what a seed promises, which rows fail, what neighbours change."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.sampling.sampler import BrokenLogits, Sampled, Sampler
from headrace.engine.scheduling.request import Request
from headrace.ipc.messages import SamplingParams

VOCAB = 3000


@dataclass
class Asked:
    """A request as the sampler sees it."""

    sampling: SamplingParams
    rid: str = "r"
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def logits(seed: int, rows: int = 1, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def tokens(found: Sequence[Sampled | BrokenLogits]) -> list[int]:
    ids = []
    for each in found:
        assert isinstance(each, Sampled)
        ids.append(each.token_id)
    return ids


def draw(row: torch.Tensor, sampling: SamplingParams, count: int, seed: int = 0) -> list[int]:
    """`count` draws of one request from the same logits."""
    sampler = Sampler(seed)
    asked = Asked(sampling)
    for _ in range(count):
        asked.output += tokens(sampler.sample(row, [asked]))
    return asked.output


def test_temperature_0_is_the_largest_logit() -> None:
    rows = logits(1, rows=4)
    asked = [Asked(params(temperature=0.0), str(row)) for row in range(4)]
    assert tokens(Sampler(0).sample(rows, asked)) == rows.argmax(-1).tolist()


@pytest.mark.parametrize(
    "fields", [{}, {"presence_penalty": 0.0, "logit_bias": ((7, 0.0),)}], ids=["plain", "biased"]
)
def test_among_equal_logits_greedy_takes_the_lowest_id(fields: dict[str, Any]) -> None:
    row = torch.zeros(1, VOCAB)
    row[0, [700, 1400, 2999]] = 1.0
    assert draw(row, params(temperature=0.0, **fields), 1) == [700]


@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-40, 1e-10, 1e-6, 1e-4])
def test_a_tiny_temperature_is_greedy_and_no_division_by_zero(temperature: float) -> None:
    row = logits(2)
    assert draw(row, params(temperature=temperature), 3) == [int(row.argmax())] * 3


def test_a_huge_temperature_draws_from_all_alike() -> None:
    row = logits(3, vocab=4, spread=10.0)
    drawn = draw(row, params(temperature=1e300), 400)
    assert all(60 <= drawn.count(token) <= 140 for token in range(4))


def test_top_k_1_is_greedy_at_any_temperature() -> None:
    row = logits(4)
    assert draw(row, params(temperature=50.0, top_k=1), 20) == [int(row.argmax())] * 20


def test_a_seed_repeats_and_another_differs() -> None:
    row = logits(12)
    first = draw(row, params(seed=5), 20, seed=1)
    assert draw(row, params(seed=5), 20, seed=2) == first
    assert draw(row, params(seed=6), 20, seed=1) != first


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_every_64_bit_seed_is_one(seed: int) -> None:
    row = logits(13)
    assert draw(row, params(seed=seed), 3) == draw(row, params(seed=seed), 3)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.5, "top_k": 20},
    {"temperature": 2.0, "top_k": 200, "top_p": 0.9},
    {"top_p": 0.5},
    {"temperature": 2.0, "top_p": 0.99},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3, "min_tokens": 5},
    {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 0.3},
    {"top_k": 7, "logit_bias": ((3, 2.0), (5, -100.0))},
]


@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_a_seeded_request_draws_the_same_whatever_runs_beside_it(fields: dict[str, Any]) -> None:
    rows = logits(14, rows=len(OPTIONS) + 1)
    mine = params(seed=5, **fields)
    alone = draw(rows[:1], mine, 12)
    sampler = Sampler(99)
    asked = Asked(mine)
    others = [Asked(params(seed=5, **other), f"other {n}") for n, other in enumerate(OPTIONS)]
    for turn in range(12):
        # Neighbours come and go, and the row's place changes.
        beside = others[turn % 4 : turn % 7 + 2]
        at = turn % (len(beside) + 1)
        batch = [*beside[:at], asked, *beside[at:]]
        order = [*range(1, at + 1), 0, *range(at + 1, len(beside) + 1)]
        found = tokens(sampler.sample(rows[order], batch))
        for each, token in zip(batch, found, strict=True):
            each.output.append(token)
    assert asked.output == alone


def test_without_a_seed_two_requests_draw_from_streams_of_their_own() -> None:
    row = logits(15).expand(2, -1)
    sampler = Sampler(3)
    asked = [Asked(params(), "a"), Asked(params(), "b")]
    pairs = [tokens(sampler.sample(row, asked)) for _ in range(12)]
    assert [a for a, _ in pairs] != [b for _, b in pairs]


def test_the_engines_seed_repeats_what_unseeded_requests_draw() -> None:
    row = logits(16)
    assert draw(row, params(), 12, seed=7) == draw(row, params(), 12, seed=7)
    assert draw(row, params(), 12, seed=7) != draw(row, params(), 12, seed=8)


def test_a_forgotten_request_begins_its_stream_anew() -> None:
    row, asked = logits(17), [Asked(params(seed=4))]
    sampler = Sampler(0)
    first = [tokens(sampler.sample(row, asked)) for _ in range(8)]
    sampler.forget("r")
    assert [tokens(sampler.sample(row, asked)) for _ in range(8)] == first


@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_the_logits_are_left_as_they_were(fields: dict[str, Any]) -> None:
    row = logits(18)
    before = row.clone()
    draw(row, params(logprobs=3, **fields), 2)
    assert torch.equal(row, before)


def test_logits_made_in_inference_mode_are_taken() -> None:
    with torch.inference_mode():
        row = logits(19)
    assert draw(row, params(temperature=0.0, presence_penalty=50.0), 2) == row[0].topk(2).indices.tolist()


def test_no_requests_get_no_tokens() -> None:
    assert Sampler(0).sample(torch.empty(0, VOCAB), []) == []


def test_a_schedulers_request_is_one_that_can_be_sampled() -> None:
    row = logits(20)
    request = Request("r", [1, 2], params(temperature=0.0))
    assert tokens(Sampler(0).sample(row, [request])) == [int(row.argmax())]


@pytest.mark.parametrize("fields", OPTIONS, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None], ids=["nan", "inf", "all -inf"])
def test_a_row_without_a_choice_fails_alone(bad: float | None, fields: dict[str, Any]) -> None:
    rows = logits(21, rows=3)
    alone = [draw(rows[row : row + 1], params(seed=row, **fields), 1) for row in (0, 2)]
    if bad is None:
        rows[1] = float("-inf")
    else:
        rows[1, 1234] = bad
    asked = [Asked(params(seed=row, logprobs=2, **fields), str(row)) for row in range(3)]
    found = Sampler(0).sample(rows, asked)
    assert isinstance(found[1], BrokenLogits) and found[1].status == 500
    assert [tokens(found[:1]), tokens(found[2:])] == alone


def test_single_logits_of_minus_infinity_are_no_fault_and_never_drawn() -> None:
    row = torch.full((1, VOCAB), float("-inf"))
    row[0, [5, 2990]] = 0.0
    for fields in OPTIONS[:7]:
        assert set(draw(row, params(seed=1, **fields), 20)) <= {5, 2990}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_may_choose_nothing_fails_as_its_own_fault(temperature: float) -> None:
    rows = logits(22, rows=2, vocab=3)
    nothing = params(temperature=temperature, min_tokens=2, stop_token_ids=(0, 1), logprobs=1)
    asked = [Asked(nothing, "a"), Asked(params(temperature=0.0), "b")]
    found = Sampler(0, frozenset({2})).sample(rows, asked)
    assert isinstance(found[0], BrokenLogits) and found[0].status == 400
    assert tokens(found[1:]) == [int(rows[1].argmax())]


def test_logprobs_are_given_where_they_are_asked_for_and_as_many_as_that() -> None:
    rows = logits(23, rows=4)
    wanted = [None, 0, 2, 5]
    asked = [Asked(params(temperature=0.0, logprobs=top), str(row)) for row, top in enumerate(wanted)]
    found = [each.logprob for each in Sampler(0).sample(rows, asked) if isinstance(each, Sampled)]
    assert [None if each is None else len(each.top) for each in found] == wanted


def test_logprobs_are_those_of_the_logits_before_temperature_penalties_and_bias() -> None:
    row = logits(24)
    expected = row[0].double().log_softmax(-1)
    sampling = params(temperature=3.0, seed=1, top_k=50, logit_bias=((7, 90.0),), logprobs=1)
    found = Sampler(0).sample(row, [Asked(sampling)])[0]
    assert isinstance(found, Sampled) and found.logprob is not None and found.token_id == 7
    assert found.logprob.logprob == pytest.approx(float(expected[7]), abs=1e-6)
    [(likeliest, logprob)] = found.logprob.top
    assert likeliest == int(row.argmax()) and logprob == pytest.approx(float(expected.max()), abs=1e-6)


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=300),
    st.floats(1e-3, 100),
    st.floats(1e-6, 1),
    st.integers(1, 400),
    st.floats(0, 1),
    st.integers(0, 2**63 - 1),
)
def test_what_is_drawn_is_among_the_top_k_and_likely_enough(
    values: Sequence[float], temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    row = torch.tensor([values])
    sampling = params(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    token = draw(row, sampling, 1)[0]
    assert row[0][token] >= row[0].topk(min(top_k, len(values))).values.min()
    assert ((row[0][token] - row.max()) / temperature).exp() >= min_p * (1 - 1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 0.5, "top_k": 6, "top_p": 0.95},
        {"repetition_penalty": 1.5, "logit_bias": ((6, 1.0),)},
    ],
    ids=str,
)
def test_draws_are_distributed_as_the_formula_says(fields: dict[str, Any]) -> None:
    row = torch.tensor([[2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0]])
    asked = Asked(params(seed=11, **fields), prompt=[0, 5])
    expected = formula(row[0], asked)
    count = 4000
    sampler = Sampler(0)
    drawn = [tokens(sampler.sample(row, [asked]))[0] for _ in range(count)]
    counts = torch.bincount(torch.tensor(drawn), minlength=8).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - count * expected)[possible] ** 2 / (count * expected[possible])).sum()
    # Chi-square with at most 7 degrees of freedom: a value above 24.3 comes once in a thousand; the seed is fixed.
    assert statistic < 24.3


def test_draws_from_a_large_vocabulary_are_distributed_as_the_formula_says() -> None:
    row = logits(25, vocab=1000, spread=1.0)
    expected = torch.softmax(row[0].double(), -1)
    count = 4000
    sampler = Sampler(0)
    asked = [Asked(params(seed=n), str(n)) for n in range(50)]
    drawn = [token for _ in range(count // 50) for token in tokens(sampler.sample(row.expand(50, -1), asked))]
    # Twenty groups of fifty neighbouring ids: blocks and their insides are both in play.
    counts = torch.bincount(torch.tensor(drawn) // 50, minlength=20).double()
    expected = expected.view(20, 50).sum(-1) * count
    # 19 degrees of freedom: once in a thousand.
    assert ((counts - expected) ** 2 / expected).sum() < 43.8


def formula(row: torch.Tensor, asked: Asked) -> torch.Tensor:
    """The probability of each id in float64: bias, repetition penalty, temperature, top_k, the nucleus, min_p."""
    sampling = asked.sampling
    scaled = row.double().clone()
    for token, bias in sampling.logit_bias:
        scaled[token] += bias
    for token in set(asked.prompt):
        value = scaled[token]
        scaled[token] = (
            value * sampling.repetition_penalty if value < 0 else value / sampling.repetition_penalty
        )
    scaled /= sampling.temperature
    if sampling.top_k > 0:
        scaled[scaled < scaled.topk(sampling.top_k).values.min()] = float("-inf")
    probabilities = torch.softmax(scaled, -1)
    values, ids = probabilities.sort(descending=True)
    probabilities[ids[values.cumsum(-1) - values >= sampling.top_p]] = 0
    probabilities[probabilities < sampling.min_p * values[0]] = 0
    return probabilities / probabilities.sum()
