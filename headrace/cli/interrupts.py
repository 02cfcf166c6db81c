"""SIGTERM and SIGHUP as an exception, so that a command that started something ends it on the way out."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM came, or SIGHUP: the terminal went away. A KeyboardInterrupt, since libraries clean up after those."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[Callable[[], None]]:
    """Raise Terminated in the main thread, which must be the one that calls this, when SIGTERM or SIGHUP comes.

    A SIGHUP that was ignored before (nohup) stays ignored.

    Gives a function that raises Terminated if one has come before: Python drops exceptions that a handler
    raises while a destructor or a callback runs, so long waits should call it. The end of the block does.
    """
    has_come = False

    def on_signal(_signal: int, _frame: FrameType | None) -> NoReturn:
        nonlocal has_come
        has_come = True
        # The way out is not to be interrupted by a second one.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise Terminated

    def insist() -> None:
        if has_come:
            raise Terminated

    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, on_signal)
        yield insist
        insist()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
