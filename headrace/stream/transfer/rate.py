"""Rates: a cap that is kept, and a floor below which a connection counts as stalled. No clock of their own."""

from collections.abc import Iterable, Sequence

LEAST_BYTES_PER_S = 64 << 10
LEAST_RATE_WINDOW_S = 10.0
_FAR_BELOW = 0.02  # of the median of all connections
_BURST_S = 0.05
_SHARE_BYTES = 64 << 10


class TokenBucket:
    """A cap in bytes a second. What is taken and not used is given back. Guard it with a lock."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._most = max(bytes_per_s * _BURST_S, 1.0)
        self._left = 0.0
        self._at_s = now_s

    def take(self, wanted: int, now_s: float) -> tuple[int, float]:
        """How many of `wanted` bytes may be received now (at most 64 KiB), or 0 and the seconds to wait."""
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._bytes_per_s)
        self._at_s = now_s
        share = min(wanted, _SHARE_BYTES, max(1, int(self._most)))
        if self._left >= share:
            self._left -= share
            return share, 0.0
        return 0, (share - self._left) / self._bytes_per_s

    def give_back(self, unused: int) -> None:
        """Bytes that were taken and did not come."""
        self._left += unused


def median(values: Iterable[float]) -> float:
    """The middle one, the upper of two. (The standard library's costs 10 ms of start-up to import.)"""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def far_too_slow(rates: Sequence[float], cap_bytes_per_s: float | None = None) -> list[int]:
    """Which of the connections trickle: indices of their bytes a second over LEAST_RATE_WINDOW_S.

    One that is below its share of the least rate for them all, or far below the median of three or more. A
    cap of ours is not the other end's fault: a quarter of it is then the least rate.
    """
    if not rates:
        return []
    least = LEAST_BYTES_PER_S if cap_bytes_per_s is None else min(LEAST_BYTES_PER_S, cap_bytes_per_s / 4)
    floor = least / len(rates)
    if len(rates) >= 3:
        floor = max(floor, _FAR_BELOW * median(rates))
    return [number for number, rate in enumerate(rates) if rate < floor]
