"""Who is let in, who waits for the load, and when nobody is left."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.server.errors import unavailable
from headrace.server.life.engine_state import EngineState


class Admission:
    """Counts the requests of one server. Lives on the event loop."""

    def __init__(
        self, state: EngineState, *, queue_while_loading: bool = True, max_waiting: int | None = None
    ) -> None:
        """Args:
        queue_while_loading: requests wait for the end of the load.
        max_waiting: how many may wait here; the engine bounds its own queue.
        """
        self._state = state
        self._queue_while_loading = queue_while_loading
        self._max_waiting = max_waiting
        self._admitted = 0
        self._waiting = 0
        self._left = asyncio.Event()

    @property
    def admitted_count(self) -> int:
        """Requests whose answers have not ended."""
        return self._admitted

    @property
    def waiting_count(self) -> int:
        """Requests that wait for the end of the load."""
        return self._waiting

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request, from its arrival to the last byte of its answer. Raises ApiError 503 or 500."""
        self._state.refuse_if_closed()
        self._admitted += 1
        self._left.clear()
        try:
            yield
        finally:
            self._admitted -= 1
            if self._admitted == 0:
                self._left.set()

    @contextmanager
    def waiting_for_load(self) -> Iterator[None]:
        """Count a request that waits until it may be sent, if it has to. Raises ApiError 503 if too many do."""
        state = self._state
        if state.ready is None and not self._queue_while_loading:
            state.refuse_if_closed()
            raise unavailable(
                f"{state.why_not_ready()} Ask again later.",
                "model_loading",
                retry_after_s=state.retry_after_s,
            )
        if state.accepting:
            yield
            return
        if self._waiting == self._max_waiting:
            raise unavailable(
                f"{state.why_not_ready()} {self._waiting} requests wait for it already, as many as "
                "--max-queued-requests allows. Ask again later.",
                "queue_full",
                retry_after_s=state.retry_after_s,
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def idle(self) -> None:
        """Wait until no admitted request is left."""
        while self._admitted:
            await self._left.wait()
