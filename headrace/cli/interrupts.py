"""SIGTERM as an exception, so that a command that started something ends it on the way out."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM came. A KeyboardInterrupt, since libraries clean up after those."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise Terminated in the main thread, which must be the one that calls this, when SIGTERM comes."""

    def on_sigterm(_signal: int, _frame: FrameType | None) -> NoReturn:
        # The way out is not to be interrupted by a second one.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
