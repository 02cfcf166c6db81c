"""What the log says of a start-up: progress lines, the table of phases, and that requests are welcome."""

import logging
from collections.abc import Sequence

from headrace.ipc.messages import PhaseTime, Ready
from headrace.server.progress import ProgressMeter

READY_LINE = "The server is fired up and ready to roll!"
PROGRESS_EVERY_S = 2.0

_log = logging.getLogger("headrace")


def since_exec(phases: Sequence[PhaseTime], engine_started_s: float) -> tuple[PhaseTime, ...]:
    """The engine's phases on the clock that began with the front's own process, whose first part leads."""
    shifted = (
        PhaseTime(phase.name, phase.start_s + engine_started_s, phase.end_s + engine_started_s)
        for phase in phases
    )
    return (PhaseTime("front: until the engine is started", 0.0, engine_started_s), *shifted)


def table_lines(phases: Sequence[PhaseTime]) -> list[str]:
    """The start-up table as aligned text; seconds."""
    width = max([len(phase.name) for phase in phases] + [len("phase")])
    lines = [f"{'phase':<{width}}  {'start':>7}  {'end':>7}  {'seconds':>7}"]
    for phase in phases:
        took_s = phase.end_s - phase.start_s
        lines.append(f"{phase.name:<{width}}  {phase.start_s:7.2f}  {phase.end_s:7.2f}  {took_s:7.2f}")
    return lines


class StartupLog:
    """Hears how the start-up goes and writes it to the log, progress at most every two seconds."""

    def __init__(self, engine_started_s: float) -> None:
        """`engine_started_s`: seconds from the front's exec to the engine's."""
        self._engine_started_s = engine_started_s
        self._next_line_s = 0.0

    def progress(self, meter: ProgressMeter, now_s: float) -> None:
        """The load went on."""
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + PROGRESS_EVERY_S
            _log.info("%s", meter.line())

    def serving(self, ready: Ready, ignored: Sequence[str]) -> None:
        """Requests are answered. `ignored`: what the model's generation_config.json asks for in vain."""
        for line in ready.summary:
            _log.info("%s", line)
        if ignored:
            _log.warning(
                "generation_config.json asks for %s, which is not applied yet: answers may differ from those "
                "of servers that do.",
                ", ".join(ignored),
            )
        for line in table_lines(since_exec(ready.phases, self._engine_started_s)):
            _log.info("%s", line)
        _log.info(READY_LINE)
