"""Tells the front how a load goes, from a thread beside it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.ipc.messages import EngineMessage, LoadProgress
from headrace.stream.transfer.transfer import Transfer

_EVERY_S = 0.2
Send = Callable[[EngineMessage], None]


@dataclass(slots=True)
class LoadReport:
    """What is told: whoever loads changes the fields.

    Attributes:
        send: may be called by any thread.
    """

    send: Send
    phase: str = "listing"
    transfer: Transfer | None = None

    def message(self) -> LoadProgress:
        """How it stands now."""
        if self.transfer is None:
            return LoadProgress(self.phase)
        now = self.transfer.progress()
        return LoadProgress(
            self.phase, now.bytes_done, now.bytes_total, now.retries, now.hedges, now.concurrency
        )


@contextmanager
def told(report: LoadReport) -> Iterator[None]:
    """Send each change of the report meanwhile; at the end the last counts, and no thread is left that sends."""
    stop = threading.Event()
    reporter = threading.Thread(target=_tell_until, args=(stop, report), name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        stop.set()
        reporter.join()
        # The last counts of bytes and retries, which may be younger than the thread's last look.
        report.send(report.message())


def _tell_until(stop: threading.Event, report: LoadReport) -> None:
    last: LoadProgress | None = None
    while not stop.wait(_EVERY_S if last else 0):
        message = report.message()
        if message != last:
            report.send(message)
            last = message
