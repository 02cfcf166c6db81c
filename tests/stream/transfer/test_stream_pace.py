"""The pace: how many connections pay, told goodput and refusals of stores that are arithmetic."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.transfer.pace import PROCESS_CEILING, START, Pace
from tests.profiles import examples

SEEDED = settings(max_examples=examples(80))
Goodput = Callable[[int], float]


def run(pace: Pace, goodput: Goodput, windows: int, *, bears: int | None = None) -> list[int]:
    """The workers in each window; a store that bears so many refuses a request in each window with more."""
    history: list[int] = []
    for _ in range(windows):
        history.append(pace.workers)
        if bears is not None and pace.workers > bears:
            pace.throttled(pace.era)
        else:
            pace.measured(goodput(pace.workers))
    return history


def capped_each(workers: int) -> float:
    return 20e6 * workers


def shared(limit: float) -> Goodput:
    return lambda workers: min(20e6 * workers, limit)


@pytest.mark.parametrize("ceiling", [1, 3, 8, 20, 64])
def test_where_each_connection_is_capped_it_goes_to_the_ceiling(ceiling: int) -> None:
    assert run(Pace(ceiling), capped_each, 12)[-1] == ceiling


def test_it_starts_modest_and_doubles() -> None:
    history = run(Pace(64), capped_each, 8)
    assert list(dict.fromkeys(history)) == [START, 16, 32, 64]


def test_where_more_does_not_pay_it_stays_at_what_does() -> None:
    history = run(Pace(64), shared(160e6), 200)
    assert max(history) <= 16
    assert history.count(8) > 180


def test_without_room_nothing_is_tried_and_with_it_again() -> None:
    pace = Pace(64)
    for _ in range(10):
        pace.measured(capped_each(pace.workers), room=False)
    assert pace.workers == START
    assert run(pace, capped_each, 12)[-1] == 64


def test_a_trial_that_is_under_way_is_judged_without_room_too() -> None:
    pace = Pace(64)
    run(pace, shared(160e6), 3)
    assert pace.workers == 16
    for _ in range(3):
        pace.measured(160e6, room=False)
    assert pace.workers == START


def test_a_step_that_brings_a_little_is_kept_but_followed_by_none() -> None:
    history = run(Pace(64), shared(1.2 * 160e6), 10)
    assert history[2:] == [16] * 8


class SlowToBegin:
    """A store whose connections bring nothing in their first two windows."""

    def __init__(self) -> None:
        self._ages = [2] * START

    def __call__(self, workers: int) -> float:
        self._ages = [*self._ages, *[0] * workers][:workers]
        goodput = 20e6 * sum(age >= 2 for age in self._ages)
        self._ages = [age + 1 for age in self._ages]
        return goodput


def test_connections_that_need_a_while_to_begin_are_not_judged_too_soon() -> None:
    assert run(Pace(64), SlowToBegin(), 12)[-1] == 64


def test_a_link_that_becomes_wider_is_found_out() -> None:
    pace = Pace(64)
    run(pace, shared(160e6), 60)
    assert pace.workers <= 10
    assert max(run(pace, capped_each, 400)) == 64


@pytest.mark.parametrize("bears", [1, 2, 3, 5, 8, 11, 20, 63])
def test_a_store_that_refuses_above_a_number_sees_that_number(bears: int) -> None:
    history = run(Pace(64), capped_each, 400, bears=bears)
    settled = history[150:]
    assert max(settled) <= bears + 1
    assert sum(workers > bears for workers in settled) <= 2
    assert sum(min(workers, bears) for workers in settled) >= 0.95 * bears * len(settled)


def test_a_refusal_is_obeyed_at_once() -> None:
    pace = Pace(64)
    before = pace.workers
    pace.throttled(pace.era)
    assert pace.workers == before // 2


def test_a_refused_trial_goes_back_to_what_was_good() -> None:
    pace = Pace(64)
    while pace.workers == START:
        pace.measured(capped_each(pace.workers))
    pace.throttled(pace.era)
    assert pace.workers == START


def test_refusals_of_what_was_asked_for_before_the_step_back_are_one() -> None:
    pace = Pace(64)
    era = pace.era
    for _ in range(8):
        pace.throttled(era)
    assert pace.workers == START // 2


def test_refusals_after_the_step_back_are_another() -> None:
    pace = Pace(64)
    pace.throttled(pace.era)
    pace.throttled(pace.era)
    assert pace.workers == START // 4


def test_more_than_the_store_bore_is_tried_seldom_and_ever_more_seldom() -> None:
    history = run(Pace(64), capped_each, 4_000, bears=8)
    tries = [at for at, workers in enumerate(history) if workers > 8]
    late = [at for at in tries if at > 100]
    assert 1 <= len(late) <= 5
    gaps = [after - before for before, after in itertools.pairwise(late)]
    assert gaps == sorted(gaps)


def test_a_stall_costs_a_quarter_and_is_forgotten() -> None:
    pace = Pace(64)
    pace.timed_out(pace.era)
    assert pace.workers == 6
    assert max(run(pace, capped_each, 300)) == 64


@SEEDED
@given(
    st.integers(1, PROCESS_CEILING),
    st.lists(
        st.one_of(st.floats(0, 1e10), st.sampled_from(["throttled", "timed out", "late"])), max_size=200
    ),
)
def test_whatever_happens_it_stays_between_one_and_the_ceiling(
    ceiling: int, events: list[float | str]
) -> None:
    pace = Pace(ceiling)
    for event in events:
        if event == "throttled":
            pace.throttled(pace.era)
        elif event == "timed out":
            pace.timed_out(pace.era)
        elif event == "late":
            pace.throttled(pace.era - 1)
        else:
            assert isinstance(event, float)
            pace.measured(event)
        assert 1 <= pace.workers <= ceiling
