"""uvicorn's server, without its signal handlers and with one tick a second instead of ten: it waits to be told."""

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

_TICK_S = 1.0  # the Date header's resolution, which is all that a tick looks after


class HttpServer(uvicorn.Server):
    """To be run on one loop. Setting `should_exit`, on that loop, ends it at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._told = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """It has been told to end."""
        return self._told.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._told.set()
        else:
            self._told.clear()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: this server has its own."""
        yield

    async def main_loop(self) -> None:
        """Tick until it is told to end."""
        while not await self.on_tick(0):  # 0: the tick that renews the header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), _TICK_S)
