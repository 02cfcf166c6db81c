"""A terminal's last line, rewritten in place while something goes on; what is logged meanwhile goes above it."""

import logging
import os
import shutil
import threading
from collections.abc import Callable
from typing import TextIO

_CLEAR = "\r\x1b[K"


class StatusLine:
    """Belongs to one stream. Any thread may use it."""

    def __init__(
        self, stream: TextIO, *, columns: Callable[[], int] | None = None, enabled: bool = True
    ) -> None:
        """Args:
        columns: how wide the terminal is now; asked for at each `show`.
        enabled: False where lines are for a program, on whatever stream.
        """
        self._stream = stream
        self._columns = columns or (lambda: shutil.get_terminal_size().columns)
        self._enabled = enabled
        self._lock = threading.RLock()
        self._shown = ""

    @property
    def works(self) -> bool:
        """Whether the stream is a terminal on which a line can be rewritten."""
        return self._enabled and self._stream.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        """Characters that a line may have; in the last column some terminals would begin a new one."""
        return max(self._columns() - 1, 10)

    def show(self, text: str) -> None:
        """Put a text in place of the last one."""
        with self._lock:
            self._shown = text[: self.columns]
            self._stream.write(_CLEAR + self._shown)
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        with self._lock:
            if self._shown:
                self._shown = ""
                self._stream.write(_CLEAR)
                self._stream.flush()

    def above(self, write: Callable[[], None]) -> None:
        """Let something else write whole lines to the stream, above the status line."""
        with self._lock:
            if not self._shown:
                write()
                return
            self._stream.write(_CLEAR)
            write()
            self._stream.write(self._shown)
            self._stream.flush()


class AboveStatusLine(logging.StreamHandler[TextIO]):
    """Logs to the status line's stream, above the line."""

    def __init__(self, stream: TextIO, status: StatusLine) -> None:
        super().__init__(stream)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self._status.above(lambda: super(AboveStatusLine, self).emit(record))
