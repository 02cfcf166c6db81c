"""Reductions over a vocabulary by blocks give what they would give over the whole row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.sampling.vocab_blocks import largest, peak, pick, reach, total

NAN, INF = float("nan"), float("inf")
# Around one block, several, and more of them than are looked into.
WIDTHS = st.sampled_from([1, 2, 127, 128, 129, 255, 256, 700, 1300])


def few_values(seed: int, rows: int, width: int, different: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-different, different + 1, (rows, width), generator=generator).float()


@given(st.integers(0, 999), WIDTHS, st.integers(0, 50))
def test_the_peak_is_the_first_of_the_largest(seed: int, width: int, different: int) -> None:
    rows = few_values(seed, 3, width, different)
    places, values = peak(rows)
    assert values.tolist() == rows.amax(-1).tolist()
    assert places.tolist() == [row.index(max(row)) for row in rows.tolist()]


@pytest.mark.parametrize("width", [1, 128, 200, 1000])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_bad_element_shows_in_the_peak(bad: float, width: int) -> None:
    for place in {0, width // 2, width - 1}:
        row = torch.zeros(1, width)
        row[0, place] = bad
        assert not peak(row)[1].isfinite()


def test_the_peak_of_nothing_but_minus_infinity_is_within_the_row() -> None:
    places, values = peak(torch.full((2, 130), -INF))
    assert places.tolist() == [0, 0] and values.tolist() == [-INF, -INF]


@given(st.integers(0, 999), WIDTHS, st.integers(0, 400), st.integers(1, 9))
def test_what_is_certain_among_the_largest_is_the_beginning_of_the_sorted_row(
    seed: int, width: int, different: int, count: int
) -> None:
    rows = few_values(seed, 2, width, different)
    values, places, certain = largest(rows, count)
    sorted_rows = torch.sort(rows, dim=-1, descending=True, stable=True)
    assert torch.equal(values, sorted_rows.values[:, :count])
    assert torch.equal(values, rows.gather(1, places))
    for row in range(2):
        assert torch.equal(places[row, : certain[row]], sorted_rows.indices[row, : certain[row]])
        if count < width:
            # Whatever is larger than the last is certain.
            assert int(certain[row]) == int((rows[row] > values[row, -1]).sum())
        else:
            assert int(certain[row]) == width


@given(st.integers(0, 999), WIDTHS, st.floats(0, 1, exclude_max=True))
def test_a_place_is_picked_where_the_share_is_reached_and_never_one_of_weight_0(
    seed: int, width: int, share: float
) -> None:
    weights = few_values(seed, 1, width, 3).clamp(min=0)
    weights[0, seed % width] = 1.0
    place = int(pick(weights, torch.tensor([share], dtype=torch.float64)))
    assert weights[0, place] > 0
    cumulative = weights[0].double().cumsum(-1)
    target = share * float(cumulative[-1])
    before = float(cumulative[place] - weights[0, place])
    # Within rounding: the sums are whole numbers, the shares are not.
    assert before - 1e-9 <= target <= float(cumulative[place]) + 1e-9


def test_the_greatest_share_gives_the_last_place_with_a_weight() -> None:
    weights = torch.zeros(1, 1000)
    weights[0, [3, 500, 700]] = torch.tensor([0.1, 0.3, 1e-30])
    below_1 = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert int(pick(weights, below_1)) == 500
    weights[0, 700] = 0.2
    assert int(pick(weights, below_1)) == 700


def test_a_share_that_was_rounded_up_to_1_is_reached_at_the_last_place_with_a_weight() -> None:
    cumulative = torch.tensor([[0.25, 0.7, 0.7, 0.7]], dtype=torch.float64)
    place, rest = reach(cumulative, torch.tensor([1.0], dtype=torch.float64))
    assert int(place) == 1 and 0.99 < float(rest) <= 1


@pytest.mark.parametrize("width", [1, 128, 1000])
def test_the_total_is_the_sum_of_the_row(width: int) -> None:
    weights = few_values(1, 3, width, 9).clamp(min=0)
    assert torch.equal(total(weights), weights.double().sum(-1))
