"""How far the start-up is, how fast, and how long it will take. No clock of its own."""

import math
from collections import deque

import msgspec

from headrace.ipc.messages import LoadProgress

_WINDOW_S = 5.0
_BAR_COLUMNS = 30
_LEAST_BAR_COLUMNS = 6


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """What /ready answers until the model is ready. `eta_s` is null while no rate is known."""

    ready: bool = False
    phase: str
    bytes_done: int
    bytes_total: int
    gb_per_s: float
    eta_s: float | None
    retries: int
    hedges: int
    concurrency: int


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

    def eta_s(self) -> float | None:
        """Seconds until the last byte, at this rate; None while no rate is known."""
        rate = self.gb_per_s()
        if rate == 0 or self.latest.bytes_total == 0:
            return None
        return (self.latest.bytes_total - self.latest.bytes_done) / 1e9 / rate

    def report(self) -> ProgressReport:
        """The state as /ready shows it."""
        eta_s = self.eta_s()
        return ProgressReport(
            phase=self.latest.phase,
            bytes_done=self.latest.bytes_done,
            bytes_total=self.latest.bytes_total,
            gb_per_s=round(self.gb_per_s(), 3),
            eta_s=round(eta_s, 1) if eta_s is not None else None,
            retries=self.latest.retries,
            hedges=self.latest.hedges,
            concurrency=self.latest.concurrency,
        )

    def line(self) -> str:
        """The state as a line of a log."""
        return f"Loading: {self.words()}"

    def words(self) -> str:
        """The state as part of a sentence."""
        latest = self.latest
        if latest.bytes_total == 0:
            return latest.phase
        return f"{latest.phase}, {self._amount()} ({self._percent()} %){self._pace()}"

    def bar(self, columns: int) -> str:
        """The state as a line of so many characters at the most that shows the share: as a bar, if there is room."""
        latest = self.latest
        if latest.bytes_total == 0:
            return self.line()[:columns]
        before, after = f"Loading: {latest.phase} ", f" {self._percent()} %, {self._amount()}{self._pace()}"
        width = min(columns - len(before) - len(after) - 2, _BAR_COLUMNS)
        if width < _LEAST_BAR_COLUMNS:
            line = self.line()
            return line if len(line) <= columns else f"Loading: {self._percent()} %"[:columns]
        full = width * latest.bytes_done // latest.bytes_total
        return f"{before}[{'#' * full}{'.' * (width - full)}]{after}"

    def _percent(self) -> int:
        return 100 * self.latest.bytes_done // self.latest.bytes_total

    def _amount(self) -> str:
        return f"{self.latest.bytes_done / 1e9:.2f} of {self.latest.bytes_total / 1e9:.2f} GB"

    def _pace(self) -> str:
        """Rate, remaining time and what went wrong, as far as there is anything to say."""
        parts = []
        if rate := self.gb_per_s():
            parts.append(f"{rate:.2f} GB/s")
        eta_s = self.eta_s()
        if eta_s is not None and self.latest.bytes_done < self.latest.bytes_total:
            parts.append(f"{_duration(eta_s)} left")
        parts += [
            f"{count} {name if count > 1 else singular}"
            for count, name, singular in (
                (self.latest.retries, "retries", "retry"),
                (self.latest.hedges, "hedges", "hedge"),
            )
            if count
        ]
        return "".join(f", {part}" for part in parts)


def _duration(seconds: float) -> str:
    """ "7 s", "2:05 min"."""
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d} min"
