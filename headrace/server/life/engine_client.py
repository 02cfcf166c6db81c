"""The engine as the routes see it: its state, its model, and generations by request id."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.ipc.messages import (
    Abort,
    Accepting,
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
    ReleaseMemory,
    RequestFailed,
    ResumeMemory,
    StepOutput,
    UpdateWeights,
    WeightsAnswer,
)
from headrace.ipc.timeline import Timeline
from headrace.server.errors import ApiError, unavailable
from headrace.server.life.in_flight import InFlight
from headrace.server.life.restarts import Restart, passes
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.token_stream import TokenStream
from headrace.server.refusals import (
    engine_failed,
    engine_gone,
    refusal,
    retry_after_s,
    shutting_down,
    why_not_ready,
)
from headrace.server.seen.metrics import AnswerMeter
from headrace.server.seen.progress import ProgressMeter
from headrace.server.text_threads import TextThreads
from headrace.server.weight_state import WeightState

_log = logging.getLogger("headrace.engine")
_LEVELS = logging.getLevelNamesMapping()

WARMING_UP = "warming up"  # LoadProgress.phase
QUEUE_TIMEOUT_S = 600.0


class EngineFailed(HeadraceError):
    """The engine cannot serve (any more). The text is for the operator."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an engine is of no use any more.

    Attributes:
        passing: another engine may do better, even if none has ever been ready.
    """

    error: HeadraceError
    passing: bool


class EngineClient:
    """What the front knows about its engine, one after another. Lives on the event loop.

    Attributes:
        texts: where tokenizing and template rendering run.
        model_uri: what is served now, or will be; an engine that is started again loads it.
        weights: what is in the engine's memory, and whether that is being changed.
        progress: where the load stands.
        model: tokenizer, template and limits; None until the engine has told them.
        max_total_tokens: places in the KV pool; None until requests may be sent.
        ready: the engine's Ready message; None until then.
        ready_at_s: when it came, on the event loop's clock.
        ever_ready: some engine has been ready.
        fault: set when this engine says, or shows, that it cannot serve.
        failure: why no engine will serve any more; None while one does or may.
        restart: the restart that goes on, until the engine is ready again.
        restarts: engines that were started again, so far.
        draining: no new request is admitted.
        load: the engine's queue and cache, as it told them last.
        steps: StepOutput messages so far: a sign of life.
        messages: all messages so far, of every engine.
        engine_pid: the engine's process, where it is one of its own.
        engine_started_s: when the engine was started: seconds after the front's exec for the first ones, until one was
            ready; 0 for those after, whose start-up is counted from their own beginning.
        timeline: what the front itself does for the start that goes on, on the same clock as `engine_started_s`.
        created: Unix time of this object, in whole seconds.
    """

    def __init__(
        self,
        build_model: Callable[[ModelInfo], ServedModel],
        texts: TextThreads,
        *,
        model_uri: str,
        queue_while_loading: bool = True,
        queue_timeout_s: float = QUEUE_TIMEOUT_S,
        max_waiting: int | None = None,
    ) -> None:
        """Make it on the running loop. Until `attach` there is no engine.

        Args:
            queue_while_loading: requests wait for the end of the load.
            queue_timeout_s: how long.
            max_waiting: how many may wait here; the engine bounds its own queue.
        """
        self._loop = asyncio.get_running_loop()
        self._send: Callable[[FrontMessage], bool] = _nobody
        self._build_model = build_model
        self._queue_while_loading = queue_while_loading
        self._queue_timeout_s = queue_timeout_s
        self._in_flight = InFlight()
        self._admitted = 0
        self._max_waiting = max_waiting
        self._waiting = 0
        self._changed = asyncio.Event()
        self._building: asyncio.Task[None] | None = None
        self.texts = texts
        self.model_uri = model_uri
        self.weights = WeightState()
        self.progress = ProgressMeter()
        self.model: ServedModel | None = None
        self.max_total_tokens: int | None = None
        self.ready: Ready | None = None
        self.ready_at_s = 0.0
        self.ever_ready = False
        self.fault: asyncio.Future[Fault] = self._loop.create_future()
        self.failure: HeadraceError | None = None
        self.restart: Restart | None = None
        self.restarts = 0
        self.draining = False
        self.load = EngineLoad()
        self.steps = 0
        self.messages = 0
        self.engine_pid: int | None = None
        self.engine_started_s = 0.0
        self.timeline = Timeline(self._loop.time())
        self.created = int(time.time())

    # ---- engines come and go

    def attach(
        self,
        send: Callable[[FrontMessage], bool],
        *,
        pid: int | None = None,
        started_s: float = 0.0,
        timeline: Timeline | None = None,
    ) -> None:
        """There is a new engine, which begins to load. See `engine_pid`, `engine_started_s` and `timeline`."""
        self._send = send
        self.engine_pid, self.engine_started_s = pid, started_s
        self.timeline = timeline if timeline is not None else Timeline(self._loop.time())
        self.progress = ProgressMeter()
        self.fault = self._loop.create_future()
        if self.restart is not None:
            self.restarts += 1
            self.restart = Restart(self.restart.attempt, self.restart.reason, None)

    def lose(self, error: HeadraceError) -> None:
        """The engine is gone: what was sent to it fails now; what waits for a load waits on."""
        answer = self._failure_for_client(error)
        self._send = _nobody
        self.engine_pid = None
        if self._building is not None:
            self._building.cancel()
        self.model = self.max_total_tokens = self.ready = None
        self.load = EngineLoad()
        self.progress = ProgressMeter()
        self.weights.lose(answer)
        self._in_flight.lose(answer)
        self._tell()

    def await_restart(self, restart: Restart) -> None:
        """There will be another engine; `attach` follows."""
        self.restart = restart

    def fail(self, error: HeadraceError) -> None:
        """No engine will serve any more: everyone who waits gets an error now. The first reason stands."""
        if self.failure is not None:
            return
        self.failure = error
        self.lose(error)

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

    @property
    def is_computing(self) -> bool:
        """The engine owes a sign of life: it has requests, and weights to compute them, or it warms up."""
        latest = self.progress.latest
        if self.ready is None:
            arrived = 0 < latest.bytes_total <= latest.bytes_done
            return latest.phase == WARMING_UP or (arrived and bool(self._in_flight))
        return bool(self._in_flight) or self.weights.is_changing

    @property
    def retry_after_s(self) -> int:
        """When it is worth asking again, as far as that is known; whole seconds, 1 to 60."""
        return retry_after_s(self.progress, self.restart, self._loop.time())

    def queue_until_s(self) -> float:
        """Until when a request that arrives now may wait for the load, on the loop's clock."""
        return self._loop.time() + self._queue_timeout_s

    async def loaded_model(self, until_s: float | None = None) -> ServedModel:
        """The model's text side, which is there long before the weights. Raises ApiError 503, 500."""
        await self._until(lambda: self.model is not None, until_s)
        assert self.model is not None
        return self.model

    async def until_accepting(self, until_s: float | None = None) -> int:
        """Wait until requests may be sent, which the engine computes when it can; `max_total_tokens`.

        Raises ApiError: 500 if there will be no engine, 503 at `until_s`.
        """
        await self._until(lambda: self.model is not None and self.max_total_tokens is not None, until_s)
        assert self.max_total_tokens is not None
        return self.max_total_tokens

    async def until_serving(self) -> Ready:
        """Wait for the end of the load, without limit. Raises ApiError if it will have none."""
        await self._until(lambda: self.model is not None and self.ready is not None, None)
        assert self.ready is not None
        return self.ready

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
        """Count a request that waits until it may be sent, if it has to. Raises ApiError 503 if too many do."""
        if self.ready is None and not self._queue_while_loading:
            self._refuse_if_closed()
            raise unavailable(
                f"{self._why_not_ready()} Ask again later.", "model_loading", retry_after_s=self.retry_after_s
            )
        if self.model is not None and self.max_total_tokens is not None:
            yield
            return
        if self._waiting == self._max_waiting:
            raise unavailable(
                f"{self._why_not_ready()} {self._waiting} requests wait for it already, as many as "
                "--max-queued-requests allows. Ask again later.",
                "queue_full",
                retry_after_s=self.retry_after_s,
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def drain(self) -> None:
        """Admit nothing more, and let go of those that still wait for the load. Running requests go on."""
        self.draining = True
        if self.ready is None:
            self._in_flight.fail_generations(shutting_down())
        self._tell()

    # ---- generations

    def submit(
        self,
        generates: Sequence[Generate],
        meter: AnswerMeter | None = None,
        *,
        load_until_s: float | None = None,
    ) -> TokenStream:
        """Start generations whose outputs come in one stream, counted by `meter`; see TokenStream for its end.

        Args:
            load_until_s: a load that has not ended by then, on the loop's clock, ends the generations with a 503.

        Raises ApiError: 503 if the engine has just ended, or the server ends while it loads; 500 if none will run.
        """
        if self.draining and self.ready is None:
            raise shutting_down()
        stream = TokenStream([generate.rid for generate in generates], self._end, meter)
        for generate in generates:
            self._refuse_if_failed()
            self._in_flight.add(generate.rid, stream)
            if not self._send(generate):
                stream.__exit__(None, None, None)
                raise engine_gone()
        if self.ready is None and load_until_s is not None:
            self._in_flight.expire_at(load_until_s, lambda: self._expire(stream))
        return stream

    async def flush_cache(self) -> CacheFlushed:
        """Have the engine empty its prefix cache; what it says. Raises ApiError 503, 500 if it is gone."""
        self._refuse_if_failed()
        if not self._send(FlushCache()):
            raise engine_gone()
        return await self._in_flight.ask_to_flush()

    async def change_weights(self, asked: UpdateWeights | ReleaseMemory | ResumeMemory) -> WeightsAnswer:
        """Have the engine change its weights, or what of them is in memory; what it says.

        Raises ApiError: 409 while another change is under way, 503 while the server ends, 503 or 500 if the engine is gone.
        """
        self._refuse_if_closed()
        answer = self.weights.begin()
        if not self._send(asked):
            self.weights.lose(engine_gone())
            raise engine_gone()
        await self._until(answer.done, None)
        return answer.result()

    def _end(self, rid: str, abort: bool) -> None:
        self._in_flight.forget(rid)
        if abort:
            self._send(Abort(rid))  # an engine that is gone has forgotten it anyway

    # ---- messages

    def receive(self, message: EngineMessage) -> None:
        """Take a message from the engine."""
        self.messages += 1
        match message:
            case StepOutput():
                self.steps += 1
                self._in_flight.put(message)
            case EngineLoad():
                self.load = message
            case RequestFailed(rid, status, code, text):
                self._in_flight.fail(rid, refusal(status, code, text))
            case CacheFlushed():
                self._in_flight.flushed(message)
            case WeightsAnswer():
                self.model_uri = message.model
                self.weights.take(message)
                self._tell()
            case LoadProgress():
                self.progress.add(message, time.monotonic())
            case ModelInfo():
                # A second one: the load began anew, and what was built of the first files counts no more.
                if self._building is not None:
                    self._building.cancel()
                if self.ready is None:
                    self.model = None
                self._building = asyncio.get_running_loop().create_task(self._build(message))
            case Accepting(max_total_tokens):
                self.max_total_tokens = max_total_tokens
                self._tell()
            case Ready():
                self.ready, self.ready_at_s = message, self._loop.time()
                self.ever_ready = True
                self.max_total_tokens = message.max_total_tokens
                self.restart = None
                self._in_flight.cancel_expiries()
                self._tell()
            case LoadFailed(error, text, remedy):
                self._break(EngineFailed(text, remedy=remedy), passing=passes(error))
            case LogLine(level, text):
                _log.log(_LEVELS.get(level.upper(), logging.INFO), "%s", text)

    async def _build(self, info: ModelInfo) -> None:
        try:
            with self.timeline.phase("front: tokenizer"):
                self.model = await self.texts.render(lambda: self._build_model(info))
        except HeadraceError as error:
            self._break(error)
        except Exception as error:
            _log.debug("building the tokenizer failed", exc_info=True)
            self._break(
                EngineFailed(
                    f"The model's tokenizer could not be built: {type(error).__name__}: {error}.",
                    remedy="Check tokenizer.json and tokenizer_config.json beside the weights.",
                )
            )
        else:
            self._tell()

    # ---- helpers

    def _break(self, error: HeadraceError, *, passing: bool = False) -> None:
        if not self.fault.done():
            self.fault.set_result(Fault(error, passing))

    def _expire(self, stream: TokenStream) -> None:
        for rid in self._in_flight.rids_of(stream):
            self._in_flight.fail(rid, self._still_loading())
            self._send(Abort(rid))

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until(self, done: Callable[[], bool], until_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                while not done():
                    self._refuse_if_closed()
                    await self._changed.wait()
        except TimeoutError:
            raise self._still_loading() from None
        self._refuse_if_failed()

    def _why_not_ready(self) -> str:
        return why_not_ready(self.progress, self.restart)

    def _still_loading(self) -> ApiError:
        return unavailable(
            f"{self._why_not_ready()} This request has waited as long as --queue-timeout allows "
            f"({self._queue_timeout_s:g} s). Ask again later.",
            "model_loading",
            retry_after_s=self.retry_after_s,
        )

    def _refuse_if_closed(self) -> None:
        self._refuse_if_failed()
        if self.draining:
            raise shutting_down()

    def _refuse_if_failed(self) -> None:
        if self.failure is not None:
            raise self._failure_for_client(self.failure)

    def _failure_for_client(self, error: HeadraceError) -> ApiError:
        return engine_failed(error, was_ready=self.ever_ready)


def _nobody(_: FrontMessage) -> bool:
    """Sends to an engine that is not there."""
    return False
