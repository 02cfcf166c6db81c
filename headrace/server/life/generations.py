"""Starts generations, and lets go of those that have ended, were left, or have waited too long for the load."""

from collections.abc import Callable, Sequence

from headrace.ipc.messages import Abort, FrontMessage, Generate
from headrace.server.life.engine_state import EngineState
from headrace.server.life.in_flight import InFlight
from headrace.server.openai.token_stream import TokenStream
from headrace.server.refusals import engine_gone, shutting_down
from headrace.server.seen.metrics import AnswerMeter


class Generations:
    """Of one server, whichever engine computes them. Lives on the event loop."""

    def __init__(self, state: EngineState, in_flight: InFlight, send: Callable[[FrontMessage], bool]) -> None:
        """`send` reaches the engine of the moment, and says whether there is one."""
        self._state = state
        self._in_flight = in_flight
        self._send = send

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
        state = self._state
        if state.draining and state.ready is None:
            raise shutting_down()
        stream = TokenStream([generate.rid for generate in generates], self._end, meter)
        for generate in generates:
            state.refuse_if_failed()
            self._in_flight.add(generate.rid, stream)
            if not self._send(generate):
                stream.__exit__(None, None, None)
                raise engine_gone()
        if state.ready is None and load_until_s is not None:
            self._in_flight.expire_at(load_until_s, lambda: self._expire(stream))
        return stream

    def _end(self, rid: str, abort: bool) -> None:
        self._in_flight.forget(rid)
        if abort:
            self._send(Abort(rid))  # an engine that is gone has forgotten it anyway

    def _expire(self, stream: TokenStream) -> None:
        for rid in self._in_flight.rids_of(stream):
            self._in_flight.fail(rid, self._state.still_loading())
            self._send(Abort(rid))
