"""A way to a server on loopback that can be closed for a while: connections are refused then, as with a store that is away."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_BLOCK_BYTES = 1 << 16


class Forwarder:
    """Passes bytes on to a port, from one of its own.

    Attributes:
        port: where it listens, also after it has been away.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self.come_back()

    def go_away(self) -> None:
        """Refuse connections, and break those that there are. The port stays taken: nobody else gets it."""
        _end(self._listener)
        self._listener = _bound(self.port)
        while self._open:
            _end(self._open.pop())

    def come_back(self) -> None:
        """Take connections."""
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """End everything."""
        self.go_away()
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone away
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(self._target)
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_BLOCK_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextlib.contextmanager
def forwarding_to(target_port: int) -> Iterator[Forwarder]:
    """One that is closed at the end."""
    forwarder = Forwarder(target_port)
    try:
        yield forwarder
    finally:
        forwarder.close()
