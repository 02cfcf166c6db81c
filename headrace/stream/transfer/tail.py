"""Which reads at the end of a transfer are worth a second connection. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.stream.transfer.rate import median

EXTRA_SHARE = 0.05  # of all bytes, that second connections may read in all
_SHORTEST_S = 0.5  # what has run for less is not judged
_MARGIN_S = 0.25


@dataclass(frozen=True, slots=True)
class Running:
    """A read under way.

    Attributes:
        number: tells it from the others.
        received: bytes since its present request began, `seconds` ago.
        missing: bytes that are still to come.
    """

    number: int
    received: int
    missing: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.received / self.seconds if self.seconds > 0 else 0.0


def worth_a_second(running: Sequence[Running], usual_rate: float | None) -> list[Running]:
    """Those that a new connection would probably end much sooner, the slowest first.

    Args:
        usual_rate: bytes a second of one connection, as finished reads had it; None before any has finished:
            then the reads under way are compared with each other.
    """
    if usual_rate is None:
        if len(running) < 3:
            return []
        usual_rate = median(read.rate for read in running)
    if usual_rate <= 0:
        return []

    def left_s(read: Running) -> float:
        return read.missing / read.rate if read.rate > 0 else float("inf")

    slow = []
    for read in running:
        anew_s = read.missing / usual_rate
        usual_s = (read.received + read.missing) / usual_rate
        if read.seconds >= max(_SHORTEST_S, 2 * usual_s) and left_s(read) > 2 * anew_s + _MARGIN_S:
            slow.append(read)
    return sorted(slow, key=left_s, reverse=True)
