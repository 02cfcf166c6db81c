"""How far the start-up is, how fast, and how long it will take. No clock of its own."""

from collections import deque

import msgspec

from headrace.ipc.messages import LoadProgress

_WINDOW_S = 5.0


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """What /ready answers until the model is ready. `eta_s` is null while no rate is known."""

    ready: bool = False
    phase: str
    bytes_done: int
    bytes_total: int
    gb_per_s: float
    eta_s: float | None
    retries: int


class ProgressMeter:
    """Turns LoadProgress messages into a rate over the last seconds in which bytes moved."""

    def __init__(self) -> None:
        self.latest = LoadProgress(phase="starting the engine")
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, progress: LoadProgress, now_s: float) -> None:
        """Take a message that arrived at `now_s` (any steady clock)."""
        self.latest = progress
        if self._samples and progress.bytes_done < self._samples[-1][1]:
            self._samples.clear()  # a load that began anew
        if self._samples and progress.bytes_done == self._samples[-1][1]:
            if len(self._samples) > 1:
                return  # what follows the transfer does not slow it
            self._samples.clear()  # nor what comes before
        self._samples.append((now_s, progress.bytes_done))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - _WINDOW_S:
            self._samples.popleft()

    def gb_per_s(self) -> float:
        """10⁹ bytes per second; 0 while unknown."""
        if len(self._samples) < 2:
            return 0.0
        (start_s, start), (end_s, end) = self._samples[0], self._samples[-1]
        return (end - start) / 1e9 / (end_s - start_s) if end_s > start_s else 0.0

    def report(self) -> ProgressReport:
        """The state as /ready shows it."""
        rate = self.gb_per_s()
        left = self.latest.bytes_total - self.latest.bytes_done
        return ProgressReport(
            phase=self.latest.phase,
            bytes_done=self.latest.bytes_done,
            bytes_total=self.latest.bytes_total,
            gb_per_s=round(rate, 3),
            eta_s=round(left / 1e9 / rate, 1) if rate > 0 and self.latest.bytes_total > 0 else None,
            retries=self.latest.retries,
        )

    def line(self) -> str:
        """The state as a line for a person."""
        latest = self.latest
        if latest.bytes_total == 0:
            return f"Loading: {latest.phase}"
        share = 100 * latest.bytes_done / latest.bytes_total
        rate = f", {self.gb_per_s():.2f} GB/s" if self.gb_per_s() else ""
        retries = f", {latest.retries} retries" if latest.retries else ""
        return (
            f"Loading: {latest.phase}, {latest.bytes_done / 1e9:.2f} of {latest.bytes_total / 1e9:.2f} GB "
            f"({share:.0f} %){rate}{retries}"
        )
