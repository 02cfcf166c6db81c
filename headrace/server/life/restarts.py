"""When a failed engine is started again: a function of data, without clock or chance of its own."""

from dataclasses import dataclass

# Names of errors of a load (see headrace/store/errors.py) that may be gone a moment later. A wrong name, a missing
# right or a malformed file is not among them: nobody wants three attempts at a typo.
_PASSING = frozenset(
    {
        "Changed",
        "ConnectionLost",
        "DeadlineExceeded",
        "SessionLost",
        "Throttled",
        "TimedOut",
        "TransientError",
        "Unreachable",
    }
)


def passes(error: str) -> bool:
    """Whether a load that failed with this kind of error (LoadFailed.error) may succeed a moment later."""
    return error in _PASSING


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and after how long.

    Attributes:
        most: restarts in a row; 0 never restarts.
        first_delay_s: before the first restart in a row; each further delay is twice as long.
        longest_delay_s: a delay is never longer.
        sound_after_s: an engine that has served so long is sound: its failure is the first in a row again.
    """

    most: int
    first_delay_s: float
    longest_delay_s: float = 30.0
    sound_after_s: float = 600.0

    def failures_in_a_row(self, before: int, served_s: float) -> int:
        """The count after one more failure.

        Args:
            before: the count until now.
            served_s: how long the failed engine has been ready; 0 if it never was.
        """
        return 1 if served_s >= self.sound_after_s else before + 1

    def delay_s(self, failures: int, chance: float) -> float | None:
        """How long to wait after so many failures in a row (≥ 1); None: no restart any more.

        Args:
            chance: in [0, 1): servers that have failed together shall not ask the store together again. The delay is
                between three quarters of what it would be and the whole.
        """
        if failures > self.most:
            return None
        doublings = min(failures - 1, 30)
        return min(self.first_delay_s * 2.0**doublings, self.longest_delay_s) * (1.0 - chance / 4)


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart that goes on, as clients and probes are told of it.

    Attributes:
        attempt: 1 for the first in a row.
        reason: why the last engine ended, a sentence.
        next_try_s: when an engine will be started, on the event loop's clock; None: one has been, and loads.
    """

    attempt: int
    reason: str
    next_try_s: float | None
