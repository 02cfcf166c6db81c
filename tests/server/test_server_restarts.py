"""When a failed engine is started again, and when one counts as stuck: data in, a decision out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.life.restarts import RestartPolicy, passes
from headrace.server.life.watchdog import Watchdog

POLICY = RestartPolicy(most=7, first_delay_s=1.0)


def test_each_delay_is_twice_the_last_one_and_none_is_longer_than_half_a_minute() -> None:
    delays = [POLICY.delay_s(failures, 0.0) for failures in range(1, 8)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_after_as_many_restarts_in_a_row_as_are_allowed_there_is_none() -> None:
    assert POLICY.delay_s(7, 0.0) is not None
    assert POLICY.delay_s(8, 0.0) is None
    assert RestartPolicy(most=0, first_delay_s=1.0).delay_s(1, 0.0) is None


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_chance_takes_up_to_a_quarter_of_a_delay(failures: int, chance: float) -> None:
    patient = RestartPolicy(most=10**6, first_delay_s=1.0)
    whole, cut = patient.delay_s(failures, 0.0), patient.delay_s(failures, chance)
    assert whole is not None and cut is not None
    assert 0.75 * whole <= cut <= whole <= 30


@pytest.mark.parametrize(("served_s", "count"), [(0.0, 4), (599.0, 4), (600.0, 1)])
def test_an_engine_that_has_served_a_while_begins_a_new_row(served_s: float, count: int) -> None:
    assert POLICY.failures_in_a_row(3, served_s) == count


@pytest.mark.parametrize("error", ["Unreachable", "Throttled", "TimedOut", "Changed", "DeadlineExceeded"])
def test_a_load_that_time_can_heal_is_worth_another_try(error: str) -> None:
    assert passes(error)


@pytest.mark.parametrize(
    "error", ["NotFound", "AccessDenied", "BadEndpoint", "InvalidConfig", "InternalError"]
)
def test_a_load_that_only_the_operator_can_heal_is_not(error: str) -> None:
    assert not passes(error)


def looks(
    dog: Watchdog, *, seconds: float, signs: int = 1, busy: bool = True, start_s: float = 0.0
) -> float | None:
    """Look as often as it asks to; when it said that the engine is stuck."""
    now_s = start_s
    while now_s <= start_s + seconds:
        if dog.is_stuck(now_s, signs=signs, busy=busy):
            return now_s
        now_s += dog.interval_s
    return None


@pytest.mark.parametrize("timeout_s", [0.5, 10.0, 300.0])
def test_an_engine_with_work_that_is_silent_for_the_whole_time_is_stuck(timeout_s: float) -> None:
    stuck_s = looks(Watchdog(timeout_s), seconds=3 * timeout_s)
    assert stuck_s is not None
    assert timeout_s <= stuck_s <= 1.25 * timeout_s


def test_an_engine_without_work_may_be_silent_for_ever() -> None:
    assert looks(Watchdog(10), seconds=1000, busy=False) is None


def test_a_sign_of_life_begins_the_time_anew() -> None:
    dog = Watchdog(10)
    assert looks(dog, seconds=9) is None
    assert looks(dog, seconds=9, signs=2, start_s=10) is None
    assert looks(dog, seconds=9, signs=3, start_s=20) is None


def test_work_that_begins_late_has_the_whole_time() -> None:
    dog = Watchdog(10)
    assert looks(dog, seconds=100, busy=False) is None
    stuck_s = looks(dog, seconds=100, start_s=200)
    assert stuck_s is not None and stuck_s >= 210


def test_time_in_which_the_front_itself_was_stopped_does_not_accuse_the_engine() -> None:
    dog = Watchdog(300)
    assert not dog.is_stuck(0.0, signs=1, busy=True)
    assert not dog.is_stuck(5.0, signs=1, busy=True)
    assert not dog.is_stuck(100_000.0, signs=1, busy=True)
