"""When to try again, and how long to wait: pure arithmetic over a policy, and the loop for a single step."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.store.errors import StoreError, TransientError, Unreachable

LONGEST_RETRY_AFTER_S = 60.0
# What is worth trying again once the store has answered before.
RETRIED = (TransientError, Unreachable)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter.

    Attributes:
        attempts: failures without a new byte in between that are borne before the error is final.
        first_s, longest_s: the back-off's bounds.
    """

    attempts: int = 8
    first_s: float = 0.1
    longest_s: float = 10.0

    def delay_s(self, failures: int, retry_after_s: float | None, chance: random.Random) -> float:
        """Seconds to wait after the n-th failure in a row (1 is the first).

        Between half of the back-off and all of it; a store's own wish is honoured up to a minute.
        """
        assert failures >= 1
        if retry_after_s is not None:
            return min(max(retry_after_s, 0.0), LONGEST_RETRY_AFTER_S)
        doublings = min(failures - 1, 60)  # beyond that a float only overflows
        ceiling = min(self.longest_s, math.ldexp(self.first_s, doublings))
        return ceiling * (0.5 + 0.5 * chance.random())


def persistently(
    work: Callable[[], Result],
    policy: RetryPolicy,
    wait: Callable[[float], object],
    *,
    retried: tuple[type[StoreError], ...] = RETRIED,
) -> Result:
    """Do `work` until it succeeds, fails for good, or has failed once more than the policy's `attempts`.

    Args:
        wait: waits that many seconds; what it raises ends it all.
        retried: the errors that are worth another try.
    """
    chance = random.Random()
    failures = 0
    while True:
        try:
            return work()
        except retried as error:
            failures += 1
            if failures > policy.attempts:
                raise
            wait(policy.delay_s(failures, retry_after_s(error), chance))


def retry_after_s(error: StoreError) -> float | None:
    """What the store asked to wait, if it did."""
    return error.retry_after_s if isinstance(error, TransientError) else None
