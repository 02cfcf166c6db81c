"""What the log says of a start-up: progress lines, the table of phases, and that requests are welcome."""

import asyncio
import logging

from headrace.ipc.messages import Ready
from headrace.server.life.engine_state import EngineState
from headrace.server.seen.startup_state import ready_s, startup_table
from headrace.server.seen.startup_table import table_lines
from headrace.server.seen.status_line import StatusLine

READY_LINE = "The server is fired up and ready to roll!"
PROGRESS_EVERY_S = 2.0
_BAR_EVERY_S = 0.2

_log = logging.getLogger("headrace")


async def log_startup(state: EngineState, status: StatusLine | None = None) -> None:
    """Show progress while the model loads, and log what there is to say at the end.

    On a terminal the status line is a bar. Elsewhere a line is logged every two seconds, also when nothing moves.
    Ends in silence if the load fails: the error is told elsewhere.

    Args:
        status: of the log's stream.
    """
    waiting = asyncio.ensure_future(state.until_serving())
    bar = status if status is not None and status.works and _log.isEnabledFor(logging.INFO) else None
    try:
        while not (await asyncio.wait({waiting}, timeout=_BAR_EVERY_S if bar else PROGRESS_EVERY_S))[0]:
            if bar is not None:
                bar.show(state.progress.bar(bar.columns))
            else:
                _log.info("%s", state.progress.line())
    finally:
        if bar is not None:
            bar.clear()
        waiting.cancel()
    if waiting.exception() is None:
        _log_ready(state, waiting.result())


def _log_ready(state: EngineState, ready: Ready) -> None:
    for line in (*ready.summary, *table_lines(startup_table(state))):
        _log.info("%s", line)
    since = "exec" if state.engine_started_s > 0 else "the engine was started"
    took_s = ready_s(state)
    _log.info("%.2f GB streamed; ready %.2f s after %s.", ready.bytes_streamed / 1e9, took_s, since)
    _log.info(READY_LINE)
