"""A TCP proxy that holds what comes back from the server for a fixed time: a far-away server, at any bandwidth.

What goes to the server is passed on at once, so that the delay is that of a round trip. Connections are made at once.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

_BLOCK_BYTES = 256 << 10
_WAITING_BLOCKS = 1024


@contextlib.contextmanager
def delay_proxy(host: str, port: int, delay_s: float) -> Iterator[tuple[str, int]]:
    """A proxy in threads of ours, to a server; the address on loopback that it listens on."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        connections: list[socket.socket] = []
        thread = threading.Thread(
            target=_accept, args=(listener, (host, port), delay_s, connections), daemon=True
        )
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            # close() would not wake up the thread that accepts.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


def _accept(
    listener: socket.socket, server: tuple[str, int], delay_s: float, connections: list[socket.socket]
) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return  # the listener was shut down
        far = socket.create_connection(server, timeout=10)
        far.settimeout(None)
        for connection in (near, far):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections += [near, far]
        threading.Thread(target=_pass_on, args=(near, far), daemon=True).start()
        waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(_WAITING_BLOCKS)
        threading.Thread(target=_collect, args=(far, waiting, delay_s), daemon=True).start()
        threading.Thread(target=_deliver, args=(waiting, near, far), daemon=True).start()


def _pass_on(source: socket.socket, destination: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either end may go at any time
        while data := source.recv(_BLOCK_BYTES):
            destination.sendall(data)
    _end(destination)


def _collect(source: socket.socket, waiting: "queue.Queue[tuple[float, bytes]]", delay_s: float) -> None:
    data = b"-"
    while data:
        try:
            data = source.recv(_BLOCK_BYTES)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + delay_s, data))


def _deliver(waiting: "queue.Queue[tuple[float, bytes]]", near: socket.socket, far: socket.socket) -> None:
    try:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                break
            near.sendall(data)
    except OSError:
        _end(far)
        while waiting.get()[1]:  # so that who collects is not held up
            pass
    _end(near)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
