"""What took how long from some moment on: the rows of the start-up table, in the engine and in the front."""

import contextlib
import threading
import time
from collections.abc import Iterator

from headrace.ipc.messages import PhaseTime


class Timeline:
    """Phases with start and end, in seconds since `origin` (a time.monotonic value). Thread-safe."""

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self._phases: list[PhaseTime] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the origin."""
        return self.since(time.monotonic())

    def since(self, moment_s: float) -> float:
        """Seconds from the origin to a moment of time.monotonic()."""
        return moment_s - self._origin

    def add(self, name: str, start_s: float, end_s: float) -> None:
        """Record a phase."""
        with self._lock:
            self._phases.append(PhaseTime(name, start_s, end_s))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the body as a phase, when it ends without an error."""
        start = self.now()
        yield
        self.add(name, start, self.now())

    def phases(self) -> tuple[PhaseTime, ...]:
        """All phases so far, by start."""
        with self._lock:
            return tuple(sorted(self._phases, key=lambda phase: phase.start_s))
