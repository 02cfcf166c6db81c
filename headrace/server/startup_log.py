"""What the log says of a start-up: progress lines, the table of phases, and that requests are welcome."""

import asyncio
import logging
from collections.abc import Sequence

from headrace.ipc.messages import PhaseTime, Ready
from headrace.server.engine_client import EngineClient
from headrace.server.status_line import StatusLine

READY_LINE = "The server is fired up and ready to roll!"
PROGRESS_EVERY_S = 2.0
_BAR_EVERY_S = 0.2

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


async def log_startup(
    client: EngineClient, engine_started_s: float, status: StatusLine | None = None
) -> None:
    """Show progress while the model loads, and log what there is to say at the end.

    On a terminal the status line is a bar. Elsewhere a line is logged every two seconds, also when nothing moves.
    Ends in silence if the load fails: the error is told elsewhere.

    Args:
        engine_started_s: seconds from the front's exec to the engine's.
        status: of the log's stream.
    """
    waiting = asyncio.ensure_future(client.until_serving())
    bar = status if status is not None and status.works and _log.isEnabledFor(logging.INFO) else None
    try:
        while not (await asyncio.wait({waiting}, timeout=_BAR_EVERY_S if bar else PROGRESS_EVERY_S))[0]:
            if bar is not None:
                bar.show(client.progress.bar(bar.columns))
            else:
                _log.info("%s", client.progress.line())
    finally:
        if bar is not None:
            bar.clear()
        waiting.cancel()
    if waiting.exception() is None:
        _log_ready(waiting.result(), engine_started_s)


def _log_ready(ready: Ready, engine_started_s: float) -> None:
    for line in ready.summary:
        _log.info("%s", line)
    phases = since_exec(ready.phases, engine_started_s)
    for line in table_lines(phases):
        _log.info("%s", line)
    ready_s = max(phase.end_s for phase in phases)
    _log.info("%.2f GB streamed; ready %.2f s after exec.", ready.bytes_streamed / 1e9, ready_s)
    _log.info(READY_LINE)
