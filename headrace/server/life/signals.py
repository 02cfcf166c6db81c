"""SIGTERM, SIGINT and SIGHUP: the first one asks for an orderly end, the second one ends at once."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Signals:
    """Counts the ending signals from before the engine is started until the last line.

    They are only counted until `attach`: importing must not be torn apart by an exception.
    """

    def __init__(self, end_at_once: Callable[[int], NoReturn]) -> None:
        """Install the handlers (main thread only). `end_at_once(signal number)` is the answer to a second one."""
        self._end_at_once = end_at_once
        self._arrived = False
        self._held = False
        self._late: int | None = None
        self._tell: Callable[[], None] | None = None
        self._before = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before is signal.SIG_IGN:
                continue  # nohup
            self._before[number] = before
            signal.signal(number, self._handle)

    def attach(self, loop: "AbstractEventLoop", first: Callable[[], None]) -> None:
        """Call `first` on the loop when the first signal arrives, or has arrived. It may be called twice."""

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the end has come anyway
                loop.call_soon_threadsafe(first)

        self._tell = tell
        if self._arrived:
            self._tell()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Put an end at once off until this is over: a process that is just being started is not known yet."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._late is not None:
                self._end_at_once(self._late)

    def restore(self) -> None:
        """Put the former handlers back."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._arrived:
            if not self._held:
                self._end_at_once(number)
            self._late = number
        self._arrived = True
        if self._tell is not None:
            self._tell()
