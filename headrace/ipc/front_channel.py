"""The front's end of the channel to one engine: a ZeroMQ PAIR socket read by the asyncio loop.

The front makes a private folder, binds there and is found by the address it gives the engine.
"""

import contextlib
import contextvars
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from headrace.ipc.messages import EngineMessage, FrontMessage

# sockaddr_un holds 107 bytes and a zero on Linux, 103 on macOS.
_LONGEST_SOCKET_PATH = 103
_MESSAGES_PER_TURN = 256


@contextlib.contextmanager
def private_address() -> Iterator[str]:
    """An ipc:// address in a new folder that only this user can enter; the folder is removed at the end.

    See `make_address`.
    """
    address = make_address()
    try:
        yield address
    finally:
        remove_address(address)


def make_address() -> str:
    """An ipc:// address in a new folder that only this user can enter. `remove_address` removes it.

    The folder lies in the temporary directory, or in /tmp where that path is too long for a socket. Raises OSError.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    if len(os.fsencode(folder / "engine")) > _LONGEST_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="headrace-", dir="/tmp"))
    return f"ipc://{folder / 'engine'}"


def remove_address(address: str) -> None:
    """Remove the private folder of an address. It may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(Path(address.removeprefix("ipc://")).parent)


class FrontChannel:
    """The front's end. Bound when it is made; owned by the thread that runs the loop."""

    def __init__(self, address: str) -> None:
        # Late, as the engine is started before these are needed: `private_address` must be quick to import.
        import zmq

        from headrace.ipc.channel import decode_engine_message, encode

        self._encode, self._decode = encode, decode_engine_message
        self._again = zmq.Again
        self._no_wait = zmq.NOBLOCK
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        # What a closing front still has to say (Stop) is said again by the end of the engine's stdin.
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.bind(address)
        self._loop: AbstractEventLoop | None = None
        self._receive: Callable[[EngineMessage], None] | None = None
        # `send` may be called for a request, with whose context the engine's messages have nothing to do.
        self._no_request = contextvars.copy_context()

    def start(self, loop: "AbstractEventLoop", receive: "Callable[[EngineMessage], None]") -> None:
        """Call `receive` on the loop with every message, in order. Call once."""
        assert self._loop is None
        self._loop, self._receive = loop, receive
        loop.add_reader(self._socket.FD, self._read)
        # ZeroMQ's descriptor signals changes only: what came before this line would never be told.
        loop.call_soon(self._read, context=self._no_request)

    def send(self, message: "FrontMessage") -> bool:
        """Queue a message; never blocks. False if no engine is at the other end (not yet, or no more)."""
        if self._socket.closed:
            return False
        try:
            self._socket.send(self._encode(message), self._no_wait)
        except self._again:
            return False
        # Sending consumes the descriptor's signal, which may have stood for a message to read.
        if self._loop is not None and self._socket.poll(0):
            self._loop.call_soon(self._read, context=self._no_request)
        return True

    def close(self) -> None:
        """Stop reading, give what is queued a moment to leave, and close. May be called twice."""
        if self._socket.closed:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._socket.FD)
        self._socket.close()
        self._context.term()

    def _read(self) -> None:
        assert self._loop is not None
        assert self._receive is not None
        for _ in range(_MESSAGES_PER_TURN):
            if self._socket.closed:
                return
            try:
                data = self._socket.recv(self._no_wait)
            except self._again:
                return
            self._receive(self._decode(data))
        self._loop.call_soon(self._read, context=self._no_request)  # let the loop's other work have a turn
