"""A two-way ZeroMQ channel between the front and one engine, on a socket in a private folder.

The front makes the folder (mode 0700) and binds; the engine connects. Messages are msgpack of
the types in `messages`; what does not decode is a defect of ours and raises.
"""

import msgspec
import zmq

from headrace.ipc.messages import EngineMessage, FrontMessage

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(FrontMessage)
_to_front = msgspec.msgpack.Decoder(EngineMessage)


def encode(message: FrontMessage | EngineMessage) -> bytes:
    """The message as msgpack."""
    return _encoder.encode(message)


def decode_front_message(data: bytes) -> FrontMessage:
    """A message that an engine received. Raises msgspec.DecodeError."""
    return _to_engine.decode(data)


def decode_engine_message(data: bytes) -> EngineMessage:
    """A message that the front received. Raises msgspec.DecodeError."""
    return _to_front.decode(data)


class EngineChannel:
    """The engine's end. Not thread-safe: one thread owns it."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)

    def send(self, message: EngineMessage) -> None:
        """Queue a message; never blocks (the front always reads, and its end ends us)."""
        self._socket.send(encode(message))

    def receive(self, timeout_s: float | None) -> FrontMessage | None:
        """The next message; None if none came within `timeout_s` (None waits without end, 0 not at all)."""
        timeout_ms = -1 if timeout_s is None else int(timeout_s * 1000)
        if not self._socket.poll(timeout_ms):
            return None
        return decode_front_message(self._socket.recv())

    def close(self) -> None:
        """Flush what is queued (two seconds at the most) and close."""
        self._socket.close()
        self._context.term()
