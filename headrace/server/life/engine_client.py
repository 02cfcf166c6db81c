"""The engine as the front sees it: its messages taken in, its changes asked for, its end told to all who wait."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from headrace.errors import HeadraceError
from headrace.ipc.messages import (
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
from headrace.server.life.admission import Admission
from headrace.server.life.engine_state import QUEUE_TIMEOUT_S, EngineState
from headrace.server.life.fault import EngineFailed, Fault
from headrace.server.life.generations import Generations
from headrace.server.life.in_flight import InFlight
from headrace.server.life.restarts import Restart, passes
from headrace.server.openai.served_model import ServedModel
from headrace.server.openai.token_stream import TokenStream
from headrace.server.options import DEFAULT_WEIGHT_VERSION
from headrace.server.refusals import engine_gone, refusal, shutting_down
from headrace.server.seen.metrics import AnswerMeter
from headrace.server.text_threads import TextThreads
from headrace.server.weight_state import WeightState

_log = logging.getLogger("headrace.engine")
_LEVELS = logging.getLevelNamesMapping()

WARMING_UP = "warming up"  # LoadProgress.phase


class EngineClient:
    """The front's end of its engines, one after another. Lives on the event loop.

    Attributes:
        state: what is known of them; what can be waited for.
        admission: who is let in, and who waits for the load.
        weights: what is in the engine's memory, and whether that is being changed.
        texts: where tokenizing and template rendering run.
        fault: set when this engine says, or shows, that it cannot serve.
        load: the engine's queue and cache, as it told them last.
        steps: StepOutput messages so far: a sign of life.
        messages: all messages so far, of every engine.
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
        weight_version: str = DEFAULT_WEIGHT_VERSION,
    ) -> None:
        """Make it on the running loop. Until `attach` there is no engine.

        Args:
            queue_while_loading: requests wait for the end of the load.
            queue_timeout_s: how long.
            max_waiting: how many may wait here; the engine bounds its own queue.
            weight_version: what the first weights are called.
        """
        self._send: Callable[[FrontMessage], bool] = _nobody
        self._build_model = build_model
        self._building: asyncio.Task[None] | None = None
        self.state = EngineState(model_uri, queue_timeout_s=queue_timeout_s)
        self.admission = Admission(
            self.state, queue_while_loading=queue_while_loading, max_waiting=max_waiting
        )
        self._in_flight = InFlight()
        self._generations = Generations(self.state, self._in_flight, lambda message: self._send(message))
        self.weights = WeightState(weight_version)
        self.texts = texts
        self.fault: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()
        self.load = EngineLoad()
        self.steps = 0
        self.messages = 0
        self.created = int(time.time())

    @property
    def waiting_for_load_count(self) -> int:
        """Who waits for the end of the load: requests here, and generations that the engine was sent already."""
        sent = self._in_flight.generation_count if self.state.ready is None else 0
        return self.admission.waiting_count + sent

    # ---- engines come and go

    def attach(
        self,
        send: Callable[[FrontMessage], bool],
        *,
        pid: int | None = None,
        started_s: float = 0.0,
        timeline: Timeline | None = None,
    ) -> None:
        """There is a new engine, which begins to load. For the rest see the attributes of EngineState."""
        self._send = send
        self.fault = asyncio.get_running_loop().create_future()
        self.state.attach(pid=pid, started_s=started_s, timeline=timeline)

    def lose(self, error: HeadraceError) -> None:
        """The engine is gone: what was sent to it fails now; what waits for a load waits on."""
        answer = self.state.failure_for_client(error)
        self._send = _nobody
        if self._building is not None:
            self._building.cancel()
        self.load = EngineLoad()
        self.weights.lose(answer)
        self._in_flight.lose(answer)
        self.state.lose()

    def await_restart(self, restart: Restart) -> None:
        """There will be another engine; `attach` follows."""
        self.state.restart = restart

    def fail(self, error: HeadraceError) -> None:
        """No engine will serve any more: everyone who waits gets an error now. The first reason stands."""
        if self.state.failure is not None:
            return
        self.state.failure = error
        self.lose(error)

    def drain(self) -> None:
        """Admit nothing more, and let go of those that still wait for the load. Running requests go on."""
        if self.state.ready is None:
            self._in_flight.fail_generations(shutting_down())
        self.state.drain()

    @property
    def is_computing(self) -> bool:
        """The engine owes a sign of life: it has requests, and weights to compute them, or it warms up."""
        latest = self.state.progress.latest
        if self.state.ready is None:
            arrived = 0 < latest.bytes_total <= latest.bytes_done
            return latest.phase == WARMING_UP or (arrived and bool(self._in_flight))
        return bool(self._in_flight) or self.weights.is_changing

    # ---- what is asked of it

    def submit(
        self,
        generates: Sequence[Generate],
        meter: AnswerMeter | None = None,
        *,
        load_until_s: float | None = None,
    ) -> TokenStream:
        """Start generations; see `Generations.submit`."""
        return self._generations.submit(generates, meter, load_until_s=load_until_s)

    async def flush_cache(self) -> CacheFlushed:
        """Have the engine empty its prefix cache; what it says. Raises ApiError 503, 500 if it is gone."""
        self.state.refuse_if_failed()
        if not self._send(FlushCache()):
            raise engine_gone()
        return await self._in_flight.ask_to_flush()

    async def change_weights(self, asked: UpdateWeights | ReleaseMemory | ResumeMemory) -> WeightsAnswer:
        """Have the engine change its weights, or what of them is in memory; what it says.

        Raises ApiError: 409 while another change is under way, 503 while the server ends, 503 or 500 if the engine is gone.
        """
        self.state.refuse_if_closed()
        answer = self.weights.begin()
        if not self._send(asked):
            self.weights.lose(engine_gone())
            raise engine_gone()
        await self.state.until(answer.done, None)
        return answer.result()

    # ---- what it says

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
                self.state.model_uri = message.model
                self.weights.take(message)
                self.state.tell()
            case LoadProgress():
                self.state.progress.add(message, time.monotonic())
            case ModelInfo():
                # A second one: the load began anew, and what was built of the first files counts no more.
                if self._building is not None:
                    self._building.cancel()
                if self.state.ready is None:
                    self.state.model = None
                self._building = asyncio.get_running_loop().create_task(self._build(message))
            case Accepting(max_total_tokens):
                self.state.accept(max_total_tokens)
            case Ready():
                self._in_flight.cancel_expiries()
                self.state.become_ready(message)
            case LoadFailed(error, text, remedy):
                self._break(EngineFailed(text, remedy=remedy), passing=passes(error))
            case LogLine(level, text):
                _log.log(_LEVELS.get(level.upper(), logging.INFO), "%s", text)

    async def _build(self, info: ModelInfo) -> None:
        try:
            with self.state.timeline.phase("front: tokenizer"):
                model = await self.texts.render(lambda: self._build_model(info))
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
            self.state.know_model(model)

    def _break(self, error: HeadraceError, *, passing: bool = False) -> None:
        if not self.fault.done():
            self.fault.set_result(Fault(error, passing))


def _nobody(_: FrontMessage) -> bool:
    """Sends to an engine that is not there."""
    return False
