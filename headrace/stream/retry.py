"""When to try again, and how long to wait: pure arithmetic over a policy."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with full jitter.

    Attributes:
        attempts: failures without a new byte in between that are borne before the error is final.
        first_s, longest_s: the back-off's bounds.
    """

    attempts: int = 8
    first_s: float = 0.1
    longest_s: float = 10.0

    def delay_s(self, failures: int, retry_after_s: float | None, chance: random.Random) -> float:
        """Seconds to wait after the n-th failure in a row (1 is the first); a store's own wish is honoured
        up to a minute."""
        if retry_after_s is not None:
            return min(max(retry_after_s, 0.0), 60.0)
        ceiling = min(self.longest_s, self.first_s * 2.0 ** (failures - 1))
        return ceiling * (0.5 + 0.5 * chance.random())
