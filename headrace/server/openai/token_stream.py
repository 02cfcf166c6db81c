"""The tokens of one HTTP request, from the engine's messages to the coroutine that answers."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType

from headrace.errors import HeadraceError
from headrace.ipc.messages import TokenOutput
from headrace.server.seen.metrics import AnswerMeter


class TokenStream:
    """An async iterator over the outputs of one or more generations, in the order they came.

    Use it as a context manager: leaving it aborts what has not finished, whatever the way out. It ends when
    every generation has finished or was ended; an error of one of them is raised and ends the others.
    """

    def __init__(
        self, rids: Iterable[str], end: Callable[[str, bool], None], meter: AnswerMeter | None = None
    ) -> None:
        """`end(rid, abort)` is called once for each rid; `abort` says that the engine must be told.

        `meter` counts what comes, when it comes: how fast the client reads does not matter.
        """
        self._open = set(rids)
        self._end = end
        self._meter = meter
        self._outputs: deque[TokenOutput] = deque()
        self._error: HeadraceError | None = None
        self._arrived = asyncio.Event()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rid in list(self._open):
            self._drop(rid)

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> TokenOutput:
        while not self._outputs:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._outputs.popleft()

    def end(self, rid: str) -> None:
        """A generation's text is complete: the engine is told to forget it. Nothing if it has finished."""
        if rid in self._open:
            if self._meter is not None:
                self._meter.stopped(rid)
            self._drop(rid)

    def _drop(self, rid: str) -> None:
        self._open.remove(rid)
        self._end(rid, True)
        if any(output.rid == rid for output in self._outputs):
            self._outputs = deque(output for output in self._outputs if output.rid != rid)

    def put(self, output: TokenOutput) -> None:
        """Take an output from the engine."""
        if output.rid not in self._open:
            return
        if self._meter is not None:
            self._meter.count(output)
        self._outputs.append(output)
        if output.finish_reason is not None:
            self._open.remove(output.rid)
            self._end(output.rid, False)
        self._arrived.set()

    def fail(self, rid: str, error: HeadraceError) -> None:
        """The engine will not answer `rid`: raise `error` in the iteration, after what has arrived."""
        if rid in self._open:
            self._open.remove(rid)
            self._end(rid, False)
        self._error = error
        self._arrived.set()
