"""A small forward proxy on loopback: CONNECT and absolute addresses, with or without a password.

Whatever host it is asked for, it goes to one port of this machine: names that no resolver knows can be used.
"""

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class ForwardProxy:
    """Listens until `stop`.

    Attributes:
        asked: the first line of each request, in order of arrival.
        refusal: a whole answer to every request, or None to pass it on.
    """

    def __init__(self, port_beyond: int, credentials: str = "") -> None:
        """Args: credentials: the USER:PASSWORD that it wants to see."""
        self.asked: list[str] = []
        self.refusal: bytes | None = None
        self._port_beyond = port_beyond
        self._wanted = f"basic {base64.b64encode(credentials.encode()).decode()}" if credentials else ""
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        """End every connection and thread."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):  # the other end was first
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        self._answer(client)
        with suppress(OSError):  # the client was first
            client.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket) -> None:
        with suppress(ConnectionError):
            while (head := _read_head(client)) is not None:
                first, *lines = head.decode("latin-1").split("\r\n")
                self.asked.append(first)
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                if self.refusal is not None:
                    client.sendall(self.refusal)
                    return
                if (
                    self._wanted
                    and headers.get("proxy-authorization", "").replace("Basic", "basic") != self._wanted
                ):
                    client.sendall(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
                    return
                beyond = socket.create_connection(("127.0.0.1", self._port_beyond))
                self._open.append(beyond)
                if first.startswith("CONNECT "):
                    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                    back = threading.Thread(target=_copy, args=(beyond, client), daemon=True)
                    self._threads.append(back)
                    back.start()
                    _copy(client, beyond)
                    return
                method, address, version = first.split(" ")
                host, _, path = address.removeprefix("http://").partition("/")
                # As a proxy must: the Host of the address, whatever came, and nothing that was for the proxy.
                kept = [line for line in lines if not line.lower().startswith(("host:", "proxy-"))]
                new = [f"{method} /{path} {version}", f"Host: {host}", "Connection: close", *kept]
                beyond.sendall("\r\n".join(new).encode("latin-1") + b"\r\n\r\n")
                body = threading.Thread(target=_copy, args=(client, beyond), daemon=True)
                self._threads.append(body)
                body.start()
                _copy(beyond, client)
                return


def _read_head(connection: socket.socket) -> bytes | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return None
        head += byte
    return head.removesuffix(b"\r\n\r\n")


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def forward_proxy(port_beyond: int, credentials: str = "") -> Iterator[ForwardProxy]:
    """A running proxy."""
    proxy = ForwardProxy(port_beyond, credentials)
    try:
        yield proxy
    finally:
        proxy.stop()
