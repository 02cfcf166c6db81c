"""OpenTelemetry traces, where they are asked for: a span for each request for text, and one for the start-up.

The event loop only hands over what has ended; a thread of its own imports the SDK, makes spans and sends them. A
collector that is away costs spans, never a request.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.server.errors import ApiError
from headrace.server.life.engine_state import EngineState
from headrace.server.life.launch import process_age_s
from headrace.server.options import ServeOptions
from headrace.server.seen.metrics import GENERATING_ROUTES
from headrace.server.seen.request_trace import RequestTrace
from headrace.server.seen.span_facts import SpanFacts, of_request, of_startup
from headrace.server.seen.startup_state import startup_phases

# What may wait for the thread: far more than it is ever behind.
_MOST_WAITING = 10_000
# What the end of the server waits for the last spans to be sent.
CLOSE_S = 3.0
_PARENT_HEADERS = {b"traceparent", b"tracestate"}

_log = logging.getLogger(__name__)


class Tracing:
    """Sends spans. Made on the event loop's thread, and used there."""

    def __init__(self, options: ServeOptions) -> None:
        self._model = options.served_model_name
        self._endpoint = options.otlp_traces_endpoint
        self._waiting: queue.Queue[SpanFacts | None] = queue.Queue(_MOST_WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._send, name="tracing", daemon=True)
        self._thread.start()

    def request_ended(
        self, trace: RequestTrace, status: int, ended_s: float, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Tell of a request that has ended; those that are not for text are passed over.

        Args:
            ended_s: by the monotonic clock, as the trace's own times.
            headers: the request's own, as ASGI has them.
        """
        if trace.route not in GENERATING_ROUTES or trace.method != "POST":
            return
        parent = _parent_of(headers)
        self._hand_over(of_request(trace, status, ended_s, model=self._model, parent=parent))

    async def startup_of(self, state: EngineState) -> None:
        """Wait until the server is ready, and tell of its start; of one that fails its own error tells."""
        try:
            ready = await state.until_serving()
        except ApiError:
            return
        executed_s = time.monotonic() - process_age_s()
        phases = startup_phases(state)
        facts = of_startup(phases, executed_s, model_uri=state.model_uri, bytes_streamed=ready.bytes_streamed)
        self._hand_over(facts)

    def close(self) -> None:
        """Send what waits, for CLOSE_S at the most."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return  # a thread that is so far behind will not catch up
        self._thread.join(CLOSE_S)

    def _hand_over(self, facts: SpanFacts) -> None:
        try:
            self._waiting.put_nowait(facts)
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                _log.warning("Traces: more spans come than can be sent; some are dropped.")

    def _send(self) -> None:
        from headrace.server.seen.span_export import SpanExport

        export = SpanExport(self._endpoint)
        while (facts := self._waiting.get()) is not None:
            export.send(facts)
        export.close()


@contextmanager
def tracing_of(options: ServeOptions, state: EngineState) -> Iterator[Tracing | None]:
    """Tracing where it is asked for, told of this server's start, too; at the end what waits is sent.

    To be used on the event loop.
    """
    if not options.enable_trace:
        yield None
        return
    tracing = Tracing(options)
    startup = asyncio.get_running_loop().create_task(tracing.startup_of(state))
    try:
        yield tracing
    finally:
        startup.cancel()
        tracing.close()


def _parent_of(headers: list[tuple[bytes, bytes]]) -> Mapping[str, str]:
    return {
        name.decode("ascii"): value.decode("latin-1") for name, value in headers if name in _PARENT_HEADERS
    }
