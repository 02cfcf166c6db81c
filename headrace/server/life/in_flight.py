"""What has been asked of an engine and is not answered yet."""

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.ipc.messages import CacheFlushed, StepOutput
from headrace.server.errors import ApiError
from headrace.server.openai.token_stream import TokenStream


class InFlight:
    """Generations by request id, and questions in the order asked. Lives on the event loop."""

    def __init__(self) -> None:
        self._streams: dict[str, TokenStream] = {}
        self._flushes: deque[asyncio.Future[CacheFlushed]] = deque()
        self._expiries: list[asyncio.TimerHandle] = []

    def __bool__(self) -> bool:
        """There is something that the engine owes an answer to."""
        return bool(self._streams or self._flushes)

    # ---- generations

    @property
    def generation_count(self) -> int:
        """Generations that go on."""
        return len(self._streams)

    def add(self, rid: str, stream: TokenStream) -> None:
        """A generation is being sent."""
        self._streams[rid] = stream

    def forget(self, rid: str) -> None:
        """It has ended, or nobody wants it any more."""
        self._streams.pop(rid, None)

    def put(self, step: StepOutput) -> None:
        """Hand a step's outputs to their streams; those of forgotten generations go nowhere."""
        for output in step.outputs:
            if stream := self._streams.get(output.rid):
                stream.put(output)

    def fail(self, rid: str, error: ApiError) -> None:
        """One generation will not be answered."""
        if stream := self._streams.get(rid):
            stream.fail(rid, error)

    def fail_generations(self, error: ApiError) -> None:
        """None will."""
        streams, self._streams = self._streams, {}
        for rid, stream in streams.items():
            stream.fail(rid, error)

    def rids_of(self, stream: TokenStream) -> list[str]:
        """Of the generations of this stream that go on."""
        return [rid for rid, each in self._streams.items() if each is stream]

    def expire_at(self, when_s: float, expire: Callable[[], None]) -> None:
        """Call `expire` then, on the loop's clock, unless `cancel_expiries` comes first."""
        self._expiries.append(asyncio.get_running_loop().call_at(when_s, expire))

    def cancel_expiries(self) -> None:
        """What goes on may take all the time that it takes."""
        for expiry in self._expiries:
            expiry.cancel()
        self._expiries.clear()

    # ---- questions

    def ask_to_flush(self) -> "asyncio.Future[CacheFlushed]":
        """The question has been sent; its answer.

        An asker who leaves keeps the place: the engine's answers come in the order of the questions.
        """
        answer: asyncio.Future[CacheFlushed] = asyncio.get_running_loop().create_future()
        self._flushes.append(answer)
        return answer

    def flushed(self, message: CacheFlushed) -> None:
        """The answer to the first question."""
        flush = self._flushes.popleft()
        if not flush.done():
            flush.set_result(message)

    # ---- the end of an engine

    def lose(self, error: ApiError) -> None:
        """Nothing of it will be answered."""
        self.cancel_expiries()
        flushes, self._flushes = self._flushes, deque()
        for flush in flushes:
            if not flush.done():
                flush.set_exception(error)
        self.fail_generations(error)
