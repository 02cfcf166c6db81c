"""How far a benchmark is: a bar on a terminal, a line now and then elsewhere."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_INTERVAL_S = 5.0
_TICK_S = 1.0


class BenchProgress:
    """Counts runs. A context manager, within which a thread shows that time goes on.

    The time that is left is reckoned from the runs so far: rounds are alike.
    """

    def __init__(
        self,
        total: int,
        rounds: int,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        unit: str = "load",
        figure: str = "GB/s",
    ) -> None:
        """Make one for so many runs.

        Args:
            total: runs in all, with those of the round that is not counted.
            clock: seconds that only grow.
            unit: what one run is.
            figure: the unit of what a run is told to have given.
        """
        self._total, self._rounds, self._stream, self._clock = total, rounds, stream, clock
        self._unit, self._figure = unit, figure
        self._lock = threading.Lock()
        self._done = 0
        self._started = self._last_line_at = clock()
        self._doing = self._last = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-progress", daemon=True)
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> "BenchProgress":
        if self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._total,
                desc=f"{self._unit}s",
                unit=self._unit,
                file=self._stream,
                dynamic_ncols=True,
            )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()

    def begin(self, name: str, number: int) -> None:
        """A run begins in round `number`; 0 is the one that is not counted."""
        with self._lock:
            self._doing = f"{name}, {f'round {number} of {self._rounds}' if number else 'warming up'}"
            if self._bar is not None:
                self._bar.set_description(self._doing)

    def end(self, name: str, value: float) -> None:
        """It has ended, with this figure."""
        with self._lock:
            self._done += 1
            self._last = f"{name} {value:.3g} {self._figure}"
            if self._bar is not None:
                self._bar.set_postfix_str(self._last, refresh=False)
                self._bar.update(1)
        self.tick()

    def tick(self) -> None:
        """Show the time that has passed; elsewhere than on a terminal, a line if the last one is old enough."""
        with self._lock:
            if self._bar is not None:
                self._bar.refresh()
                return
            now = self._clock()
            if now - self._last_line_at < LINE_INTERVAL_S:
                return
            self._last_line_at = now
            left = ""
            if self._done:
                left_s = (now - self._started) / self._done * (self._total - self._done)
                left = f", about {left_s:.0f} s left"
            last = f"; last: {self._last}" if self._last else ""
            line = f"bench: {self._done} of {self._total} {self._unit}s ({self._doing}{last}){left}"
            print(line, file=self._stream, flush=True)

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            self.tick()
