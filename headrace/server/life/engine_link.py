"""One engine as the front holds it: its process, and the channel of its own to it."""

import asyncio
import contextlib
from collections.abc import Callable

from headrace.ipc.front_channel import FrontChannel
from headrace.ipc.messages import EngineMessage, FrontMessage, Stop
from headrace.server.life.engine_process import EngineProcess, exit_sentence
from headrace.server.life.fault import EngineFailed


class EngineLink:
    """Lives on the event loop, from an engine's start until it is gone.

    Attributes:
        ended: the process's return code, once it has ended.
    """

    def __init__(self, process: EngineProcess, receive: Callable[[EngineMessage], None]) -> None:
        """Open the channel: `receive` is called with every message until `mute`."""
        loop = asyncio.get_running_loop()
        self.process = process
        self._channel = FrontChannel(process.address)
        self._channel.start(loop, receive)
        ended: asyncio.Future[int] = loop.create_future()
        self.ended = ended

        def tell(code: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(ended.set_result, code)

        process.watch(tell)

    def send(self, message: FrontMessage) -> bool:
        """Queue a message; False if no engine is at the other end."""
        return self._channel.send(message)

    def mute(self) -> None:
        """Hear nothing more of it. May be called twice."""
        self._channel.close()

    async def until_ended(self, timeout_s: float) -> bool:
        """Give the process so long to end; whether it has."""
        await asyncio.wait({self.ended}, timeout=timeout_s)
        return self.ended.done()

    async def stop(self, timeout_s: float) -> None:
        """Tell it to end and give it so long to do so; `mute` and `EngineProcess.kill` are left to the caller."""
        self.send(Stop())
        self.process.close_stdin()
        await self.until_ended(timeout_s)

    async def kill(self) -> None:
        """End the process, whatever it does, and hear nothing more of it; then nothing of it is left."""
        self.mute()
        await asyncio.to_thread(self.process.kill)


def why_ended(returncode: int) -> EngineFailed:
    """The end of a process that gave no reason itself."""
    if returncode == -9:
        remedy = (
            "If nobody killed it, the system did for want of memory (dmesg tells): lower "
            "--mem-fraction-static or --max-total-tokens, or give the machine more memory."
        )
    else:
        remedy = "What it wrote above says more."
    return EngineFailed(f"The engine process {exit_sentence(returncode)}.", remedy=remedy)
