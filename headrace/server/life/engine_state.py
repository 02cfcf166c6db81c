"""What is known of a server's engines, and the waiting for what is not known yet. It sends nothing."""

import asyncio
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.ipc.messages import Ready
from headrace.ipc.timeline import Timeline
from headrace.server.errors import ApiError, unavailable
from headrace.server.life.restarts import Restart
from headrace.server.openai.served_model import ServedModel
from headrace.server.refusals import engine_failed, retry_after_s, shutting_down, why_not_ready
from headrace.server.seen.progress import ProgressMeter

QUEUE_TIMEOUT_S = 600.0


class EngineState:
    """Of one server, through all of its engines. Lives on the event loop.

    Attributes:
        model_uri: what is served now, or will be; an engine that is started again loads it.
        progress: where the load stands.
        model: tokenizer, template and limits; None until the engine has told them.
        max_total_tokens: places in the KV pool; None until requests may be sent.
        ready: the engine's Ready message; None until then.
        ready_at_s: when it came, on the event loop's clock.
        ever_ready: some engine has been ready.
        failure: why no engine will serve any more; None while one does or may.
        restart: the restart that goes on, until the engine is ready again.
        restarts: engines that were started again, so far.
        draining: no new request is admitted.
        engine_pid: the engine's process, where it is one of its own.
        engine_started_s: when the engine was started: seconds after the front's exec for the first ones, until one was
            ready; 0 for those after, whose start-up is counted from their own beginning.
        timeline: what the front itself does for the start that goes on, on the same clock as `engine_started_s`.
    """

    def __init__(self, model_uri: str, *, queue_timeout_s: float = QUEUE_TIMEOUT_S) -> None:
        """Make it on the running loop. Requests wait for the load for `queue_timeout_s` at the most."""
        self._loop = asyncio.get_running_loop()
        self._queue_timeout_s = queue_timeout_s
        self._changed = asyncio.Event()
        self.model_uri = model_uri
        self.progress = ProgressMeter()
        self.model: ServedModel | None = None
        self.max_total_tokens: int | None = None
        self.ready: Ready | None = None
        self.ready_at_s = 0.0
        self.ever_ready = False
        self.failure: HeadraceError | None = None
        self.restart: Restart | None = None
        self.restarts = 0
        self.draining = False
        self.engine_pid: int | None = None
        self.engine_started_s = 0.0
        self.timeline = Timeline(self._loop.time())

    # ---- what happens to it

    def attach(self, *, pid: int | None, started_s: float, timeline: Timeline | None) -> None:
        """There is a new engine, which begins to load."""
        self.engine_pid, self.engine_started_s = pid, started_s
        self.timeline = timeline if timeline is not None else Timeline(self._loop.time())
        self.progress = ProgressMeter()
        if self.restart is not None:
            self.restarts += 1
            self.restart = Restart(self.restart.attempt, self.restart.reason, None)

    def lose(self) -> None:
        """The engine is gone."""
        self.engine_pid = None
        self.model = self.max_total_tokens = self.ready = None
        self.progress = ProgressMeter()
        self.tell()

    def know_model(self, model: ServedModel) -> None:
        """The model's text side is there."""
        self.model = model
        self.tell()

    def accept(self, max_total_tokens: int) -> None:
        """Requests may be sent."""
        self.max_total_tokens = max_total_tokens
        self.tell()

    def become_ready(self, message: Ready) -> None:
        """The load has ended."""
        self.ready, self.ready_at_s = message, self._loop.time()
        self.ever_ready = True
        self.restart = None
        self.accept(message.max_total_tokens)

    def drain(self) -> None:
        """Nothing more is admitted, and who waits is let go."""
        self.draining = True
        self.tell()

    def tell(self) -> None:
        """Have all who wait look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- what can be asked

    @property
    def serving(self) -> bool:
        """Requests are answered without waiting for the load."""
        return (
            self.model is not None and self.ready is not None and self.failure is None and not self.draining
        )

    @property
    def accepting(self) -> bool:
        """Requests may be sent, though the load may go on."""
        return self.model is not None and self.max_total_tokens is not None

    @property
    def retry_after_s(self) -> int:
        """When it is worth asking again, as far as that is known; whole seconds, 1 to 60."""
        return retry_after_s(self.progress, self.restart, self._loop.time())

    def queue_until_s(self) -> float:
        """Until when a request that arrives now may wait for the load, on the loop's clock."""
        return self._loop.time() + self._queue_timeout_s

    def why_not_ready(self) -> str:
        """A sentence or two for who cannot be answered yet."""
        return why_not_ready(self.progress, self.restart)

    def still_loading(self) -> ApiError:
        """The 503 of a request that has waited as long as it may."""
        return unavailable(
            f"{self.why_not_ready()} This request has waited as long as --queue-timeout allows "
            f"({self._queue_timeout_s:g} s). Ask again later.",
            "model_loading",
            retry_after_s=self.retry_after_s,
        )

    def failure_for_client(self, error: HeadraceError) -> ApiError:
        """An engine's failure as its clients are told."""
        return engine_failed(error, was_ready=self.ever_ready)

    def refuse_if_failed(self) -> None:
        """Raises ApiError 500, or as `fail` was told, if no engine will serve any more."""
        if self.failure is not None:
            raise self.failure_for_client(self.failure)

    def refuse_if_closed(self) -> None:
        """Raises ApiError as `refuse_if_failed`, and 503 while the server ends."""
        self.refuse_if_failed()
        if self.draining:
            raise shutting_down()

    def refuse_unless_serving(self) -> None:
        """Raises ApiError as `refuse_if_closed`, and 503 while there is no engine, or one that loads."""
        self.refuse_if_closed()
        if not self.serving:
            text = f"{self.why_not_ready()} Ask again later."
            raise unavailable(text, "model_loading", retry_after_s=self.retry_after_s)

    # ---- what can be waited for

    async def loaded_model(self, until_s: float | None = None) -> ServedModel:
        """The model's text side, which is there long before the weights. Raises ApiError 503, 500."""
        await self.until(lambda: self.model is not None, until_s)
        assert self.model is not None
        return self.model

    async def until_accepting(self, until_s: float | None = None) -> int:
        """Wait until requests may be sent, which the engine computes when it can; `max_total_tokens`.

        Raises ApiError: 500 if there will be no engine, 503 at `until_s`.
        """
        await self.until(lambda: self.accepting, until_s)
        assert self.max_total_tokens is not None
        return self.max_total_tokens

    async def until_serving(self) -> Ready:
        """Wait for the end of the load, without limit. Raises ApiError if it will have none."""
        await self.until(lambda: self.model is not None and self.ready is not None, None)
        assert self.ready is not None
        return self.ready

    async def until(self, done: Callable[[], bool], until_s: float | None) -> None:
        """Wait until it is so, looking whenever something has changed. Raises ApiError as `until_accepting`."""
        try:
            async with asyncio.timeout_at(until_s):
                while not done():
                    self.refuse_if_closed()
                    await self._changed.wait()
        except TimeoutError:
            raise self.still_loading() from None
        self.refuse_if_failed()
