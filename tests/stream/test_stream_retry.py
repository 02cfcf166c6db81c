"""When a read is tried again, and after how long."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    Changed,
    StoreError,
    Throttled,
    TransientError,
    Unreachable,
)
from headrace.stream.retry import LONGEST_RETRY_AFTER_S, RetryPolicy, persistently


@given(st.integers(1, 5_000), st.floats(0, 10), st.floats(0, 100), st.integers(0, 9))
def test_the_back_off_doubles_up_to_its_bound_and_never_falls_below_half(
    failures: int, first_s: float, longest_s: float, seed: int
) -> None:
    policy = RetryPolicy(first_s=first_s, longest_s=longest_s)
    full = min(longest_s, first_s * 2.0 ** min(failures - 1, 60))
    assert full / 2 <= policy.delay_s(failures, None, random.Random(seed)) <= full


@given(st.floats(allow_nan=False), st.integers(1, 100))
def test_a_stores_wish_is_honoured_up_to_a_minute(wish_s: float, failures: int) -> None:
    delay_s = RetryPolicy().delay_s(failures, wish_s, random.Random(0))
    assert delay_s == min(max(wish_s, 0.0), LONGEST_RETRY_AFTER_S)


def test_two_that_failed_together_do_not_come_back_together() -> None:
    policy, chance = RetryPolicy(), random.Random(0)
    assert policy.delay_s(3, None, chance) != policy.delay_s(3, None, chance)


def failing(times: int, error: StoreError) -> "list[StoreError | None]":
    return [*([error] * times), None]


def run(outcomes: "list[StoreError | None]", attempts: int = 3) -> tuple[str, list[float]]:
    left, waited = list(outcomes), list[float]()

    def work() -> str:
        if (error := left.pop(0)) is not None:
            raise error
        return "done"

    return persistently(work, RetryPolicy(attempts), waited.append), waited


@pytest.mark.parametrize("kind", [TransientError, Throttled, Unreachable])
def test_what_may_pass_is_tried_again(kind: type[StoreError]) -> None:
    result, waited = run(failing(3, kind("s3://b/k", "No.")))
    assert result == "done"
    assert len(waited) == 3


def test_what_does_not_pass_is_raised_after_the_last_try() -> None:
    with pytest.raises(TransientError):
        run(failing(4, TransientError("s3://b/k", "No.")))


@pytest.mark.parametrize("kind", [AccessDenied, Changed, BadEndpoint])
def test_what_is_final_is_raised_at_once(kind: type[StoreError]) -> None:
    with pytest.raises(kind):
        run(failing(1, kind("s3://b/k", "No.")))


def test_the_wait_is_as_long_as_the_store_wishes() -> None:
    error = Throttled("s3://b/k", "Slow down.")
    error.retry_after_s = 17.0
    assert run(failing(2, error))[1] == [17.0, 17.0]
