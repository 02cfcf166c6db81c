"""The engine as the routes see it: its state, its model, and generations by request id."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.errors import HeadraceError
from headrace.ipc.messages import (
    Abort,
    CacheFlushed,
    EngineLoad,
    EngineMessage,
    FlushCache,
    FrontMessage,
    Generate,
    LoadFailed,
    LoadProgress,
    LogLine,
    ModelInfo,
    Ready,
    RequestFailed,
    StepOutput,
)
from headrace.server.errors import ApiError, unavailable
from headrace.server.metrics import AnswerMeter
from headrace.server.progress import ProgressMeter
from headrace.server.served_model import ServedModel
from headrace.server.text_threads import TextThreads
from headrace.server.token_stream import TokenStream

_log = logging.getLogger("headrace.engine")
_LEVELS = logging.getLevelNamesMapping()

LOAD_TIMEOUT_S = 600.0
RETRY_AFTER_S = 5
BUSY_STATUSES = frozenset({429, 503})  # of refusals that a later try may not meet


class EngineFailed(HeadraceError):
    """The engine cannot serve (any more). The text is for the operator."""


class EngineClient:
    """What the front knows about its engine. Lives on the event loop.

    Attributes:
        texts: where tokenizing and template rendering run.
        progress: where the load stands.
        model: tokenizer, template and limits; None until the engine has told them.
        ready: the engine's Ready message; None until then.
        failure: why the engine cannot serve; None while it can.
        draining: no new request is admitted.
        load: the engine's queue and cache, as it told them last.
        steps: StepOutput messages so far: a sign of life.
        created: Unix time of this object, in whole seconds.
    """

    def __init__(
        self,
        send: Callable[[FrontMessage], bool],
        build_model: Callable[[ModelInfo], ServedModel],
        texts: TextThreads,
        *,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        max_waiting: int | None = None,
    ) -> None:
        """`max_waiting`: requests that may wait for the end of the load; the engine bounds its own queue."""
        self._send = send
        self._build_model = build_model
        self._load_timeout_s = load_timeout_s
        self._streams: dict[str, TokenStream] = {}
        self._flushes: deque[asyncio.Future[CacheFlushed]] = deque()
        self._admitted = 0
        self._max_waiting = max_waiting
        self._waiting = 0
        self._changed = asyncio.Event()
        self._building: asyncio.Task[None] | None = None
        self.texts = texts
        self.progress = ProgressMeter()
        self.model: ServedModel | None = None
        self.ready: Ready | None = None
        self.failure: HeadraceError | None = None
        self.draining = False
        self.load = EngineLoad()
        self.steps = 0
        self.created = int(time.time())

    # ---- state

    @property
    def serving(self) -> bool:
        """Requests are answered without waiting for the load."""
        return (
            self.model is not None and self.ready is not None and self.failure is None and not self.draining
        )

    @property
    def waiting_for_load_count(self) -> int:
        """Requests that wait for the end of the load."""
        return self._waiting

    async def loaded_model(self) -> ServedModel:
        """The model's text side, which is there long before the weights. Raises ApiError 503, 500."""
        await self._until(lambda: self.model is not None, self._load_timeout_s)
        assert self.model is not None
        return self.model

    async def until_serving(self, *, patient: bool = False) -> Ready:
        """Wait for the end of the load. Raises ApiError: 500 if it fails, 503 after `load_timeout_s`.

        A `patient` caller waits without limit.
        """
        timeout_s = None if patient else self._load_timeout_s
        await self._until(lambda: self.model is not None and self.ready is not None, timeout_s)
        assert self.ready is not None
        return self.ready

    async def failed(self) -> HeadraceError:
        """Wait until the engine cannot serve, and say why."""
        while self.failure is None:
            await self._changed.wait()
        return self.failure

    async def idle(self) -> None:
        """Wait until no admitted request is left."""
        while self._admitted:
            await self._changed.wait()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request, from its arrival to the last byte of its answer. Raises ApiError 503 or 500."""
        self._refuse_if_closed()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1
            if self._admitted == 0:
                self._tell()

    @contextmanager
    def waiting_for_load(self) -> Iterator[None]:
        """Count a request that waits for the load, if it has not ended. Raises ApiError 503 if too many do."""
        if self.model is not None and self.ready is not None:
            yield
            return
        if self._waiting == self._max_waiting:
            raise unavailable(
                f"The model is still loading ({self.progress.line()}), and {self._waiting} requests wait for it "
                "already, as many as --max-queued-requests allows. Ask again later.",
                "queue_full",
                retry_after_s=RETRY_AFTER_S,
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def drain(self) -> None:
        """Admit nothing more, and let go of those that still wait for the load. Running requests go on."""
        self.draining = True
        self._tell()

    def fail(self, error: HeadraceError) -> None:
        """The engine cannot serve: everyone who waits gets an error now. The first reason stands."""
        if self.failure is not None:
            return
        self.failure = error
        self.load = EngineLoad()
        flushes, self._flushes = self._flushes, deque()
        for flush in flushes:
            if not flush.done():
                flush.set_exception(self._failure_for_client(error))
        streams, self._streams = self._streams, {}
        for rid, stream in streams.items():
            stream.fail(rid, self._failure_for_client(error))
        self._tell()

    # ---- generations

    def submit(self, generates: Sequence[Generate], meter: AnswerMeter | None = None) -> TokenStream:
        """Start generations whose outputs come in one stream, counted by `meter`; see TokenStream for its end.

        Raises ApiError 500 if the engine is gone.
        """
        stream = TokenStream([generate.rid for generate in generates], self._end, meter)
        for generate in generates:
            self._refuse_if_failed()
            self._streams[generate.rid] = stream
            if not self._send(generate):
                stream.__exit__(None, None, None)
                raise _gone()
        return stream

    async def flush_cache(self) -> CacheFlushed:
        """Have the engine empty its prefix cache; what it says. Raises ApiError 500 if it is gone."""
        self._refuse_if_failed()
        answer = asyncio.get_running_loop().create_future()
        if not self._send(FlushCache()):
            raise _gone()
        # An asker who leaves keeps the place: the engine's answers come in the order of the questions.
        self._flushes.append(answer)
        flushed: CacheFlushed = await answer
        return flushed

    def _end(self, rid: str, abort: bool) -> None:
        self._streams.pop(rid, None)
        if abort:
            self._send(Abort(rid))  # an engine that is gone has forgotten it anyway

    # ---- messages

    def receive(self, message: EngineMessage) -> None:
        """Take a message from the engine."""
        match message:
            case StepOutput(outputs):
                self.steps += 1
                for output in outputs:
                    if stream := self._streams.get(output.rid):
                        stream.put(output)
            case EngineLoad():
                self.load = message
            case RequestFailed(rid, status, code, text):
                if stream := self._streams.get(rid):
                    stream.fail(rid, _refusal(status, code, text))
            case CacheFlushed():
                flush = self._flushes.popleft()
                if not flush.done():
                    flush.set_result(message)
            case LoadProgress():
                self.progress.add(message, time.monotonic())
            case ModelInfo():
                # A second one: the load began anew, and what was built of the first files counts no more.
                if self._building is not None:
                    self._building.cancel()
                self._building = asyncio.get_running_loop().create_task(self._build(message))
            case Ready():
                self.ready = message
                self._tell()
            case LoadFailed(_, text, remedy):
                self.fail(EngineFailed(text, remedy=remedy))
            case LogLine(level, text):
                _log.log(_LEVELS.get(level.upper(), logging.INFO), "%s", text)

    async def _build(self, info: ModelInfo) -> None:
        try:
            self.model = await self.texts.render(lambda: self._build_model(info))
        except HeadraceError as error:
            self.fail(error)
        except Exception as error:
            _log.debug("building the tokenizer failed", exc_info=True)
            self.fail(
                EngineFailed(
                    f"The model's tokenizer could not be built: {type(error).__name__}: {error}.",
                    remedy="Check tokenizer.json and tokenizer_config.json beside the weights.",
                )
            )
        else:
            self._tell()

    # ---- helpers

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    self._refuse_if_closed()
                    await self._changed.wait()
        except TimeoutError:
            raise unavailable(
                f"The model is still loading after {timeout_s:.0f} s of waiting "
                f"({self.progress.line()}). Ask again later.",
                "model_loading",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        self._refuse_if_failed()

    def _refuse_if_closed(self) -> None:
        self._refuse_if_failed()
        if self.draining:
            raise unavailable(
                "The server is shutting down and admits no new requests.", "shutting_down", close=True
            )

    def _refuse_if_failed(self) -> None:
        if self.failure is not None:
            raise self._failure_for_client(self.failure)

    def _failure_for_client(self, error: HeadraceError) -> ApiError:
        if isinstance(error, ApiError):
            return error
        what = "The engine failed" if self.ready is not None else "The model could not be loaded"
        return ApiError(500, f"{what}: {error.message}", code="engine_failed")


def _refusal(status: int, code: str, text: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in BUSY_STATUSES else {}
    return ApiError(status, text, code=code, headers=headers)


def _gone() -> ApiError:
    return ApiError(500, "The engine process is gone.", code="engine_failed")
