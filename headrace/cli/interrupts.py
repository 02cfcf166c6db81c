"""SIGTERM as an exception, so that a command that started something ends it on the way out."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM came. A KeyboardInterrupt, since libraries clean up after those."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[Callable[[], None]]:
    """Raise Terminated in the main thread, which must be the one that calls this, when SIGTERM comes.

    Gives a function that raises Terminated if SIGTERM has come before: Python drops exceptions that a handler
    raises while a destructor or a callback runs, so long waits should call it. The end of the block does.
    """
    has_come = False

    def on_sigterm(_signal: int, _frame: FrameType | None) -> NoReturn:
        nonlocal has_come
        has_come = True
        # The way out is not to be interrupted by a second one.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    def insist() -> None:
        if has_come:
            raise Terminated

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield insist
        insist()
    finally:
        signal.signal(signal.SIGTERM, before)
