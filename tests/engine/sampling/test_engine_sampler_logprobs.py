"""Logprobs: the model's own distribution, and which of its likeliest are told."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.sampling.logprobs import token_logprobs


def logits(seed: int, rows: int, vocab: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("vocab", [1, 7, 128, 2001])
def test_logprobs_are_the_log_softmax(vocab: int) -> None:
    rows = logits(1, 5, vocab)
    ids = [0, vocab - 1, vocab // 2, 0, vocab // 3]
    expected = torch.log_softmax(rows.double(), -1)
    found = token_logprobs(rows, ids, min(3, vocab))
    for row, (each, token) in enumerate(zip(found, ids, strict=True)):
        assert each.logprob == pytest.approx(float(expected[row, token]), abs=1e-6)
        values, places = expected[row].topk(min(3, vocab))
        assert [token_id for token_id, _ in each.top] == places.tolist()
        assert [logprob for _, logprob in each.top] == pytest.approx(values.tolist(), abs=1e-6)


def test_huge_logits_do_not_overflow() -> None:
    rows = torch.tensor([[3e38, -3e38, 2.9e38]])
    found = token_logprobs(rows, [0], 1)[0]
    assert found.logprob == 0.0 and found.top == ((0, 0.0),)


def test_top_0_tells_the_token_alone() -> None:
    assert token_logprobs(logits(2, 1, 50), [3], 0)[0].top == ()


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    assert len(token_logprobs(logits(3, 1, 6), [3], 20)[0].top) == 6


def test_no_rows_give_no_logprobs() -> None:
    assert token_logprobs(torch.empty(0, 50), [], 5) == []


def test_a_long_prompt_is_told_row_by_row_as_if_each_came_alone() -> None:
    rows = logits(4, 40, 100_001)  # more than is worked on at a time
    ids = [number * 2500 for number in range(40)]
    together = token_logprobs(rows, ids, 4)
    assert together == [token_logprobs(rows[row : row + 1], [ids[row]], 4)[0] for row in range(40)]


def test_the_logits_are_left_as_they_were() -> None:
    rows = logits(5, 2, 500)
    before = rows.clone()
    token_logprobs(rows, [1, 2], 3)
    assert torch.equal(rows, before)


def test_a_logit_of_minus_infinity_is_told_as_such() -> None:
    assert token_logprobs(torch.tensor([[0.0, float("-inf")]]), [1], 2)[0].logprob == -math.inf


@pytest.mark.parametrize("top", [1, 5, 200])
def test_among_equals_the_lowest_ids_are_told(top: int) -> None:
    rows = torch.zeros(2, 4000)
    rows[1, 3999] = 1.0
    flat, peaked = token_logprobs(rows, [0, 0], top)
    assert [token for token, _ in flat.top] == list(range(top))
    assert [token for token, _ in peaked.top] == [3999, *range(top - 1)]


@given(st.lists(st.sampled_from([-2.0, 0.0, 0.5, 1.0]), min_size=1, max_size=600), st.integers(1, 30))
def test_the_likeliest_come_in_descending_order_the_lower_id_first(values: list[float], top: int) -> None:
    row = torch.tensor([values])
    found = [token for token, _ in token_logprobs(row, [0], top)[0].top]
    expected = sorted(range(len(values)), key=lambda token: (-values[token], token))
    assert found == expected[:top]
