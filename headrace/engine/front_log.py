"""While a model loads, the log lines of its engine go to the front, so that one process writes the log."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.ipc.messages import LogLine

_OURS = logging.getLogger("headrace")


class FrontLog(logging.Handler):
    """Sends each record as a LogLine; `send` may be called by any thread."""

    def __init__(self, send: Callable[[LogLine], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        self._send(LogLine(record.levelname.lower(), self.format(record)))


@contextmanager
def logged_by_the_front(send: Callable[[LogLine], None], level: str) -> Iterator[None]:
    """Send what Headrace's own modules log at `level` and above, and let nothing else write it meanwhile."""
    handler = FrontLog(send)
    before = _OURS.level, _OURS.propagate
    _OURS.addHandler(handler)
    _OURS.setLevel(level.upper())
    _OURS.propagate = False
    try:
        yield
    finally:
        _OURS.removeHandler(handler)
        _OURS.setLevel(before[0])
        _OURS.propagate = before[1]
