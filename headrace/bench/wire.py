"""The bare limit of a place: how fast this machine takes its bytes, with nothing parsed, checked or copied.

Blocking threads with one connection (or descriptor) each take ranges of 8 MiB from one queue and receive them
straight into one fresh mapping. A loader can come near to it; it cannot be faster for long.
"""

import contextlib
import mmap
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import SplitResult, urlsplit

from headrace.bench.sharing import share

CHUNK_BYTES = 8 << 20
Sign = Callable[[str, str], Iterable[tuple[str, str]]]
"""From a URL and a Range header to all headers of a request."""


class WireError(Exception):
    """The other end did not answer a ranged GET as it should."""


def plain_headers(url: str, byte_range: str) -> Iterable[tuple[str, str]]:
    """The headers of a request that nobody has to sign."""
    return (("Host", urlsplit(url).netloc), ("Range", byte_range))


def receive_all(
    urls: Iterable[tuple[str, int]],
    connections: int,
    sign: Sign,
    tls: ssl.SSLContext | None,
    limit_bytes: int | None = None,
) -> memoryview:
    """Receive objects (URL, size) whole, one after another in memory. Raises WireError, OSError."""
    ranges, size = _ranges(urls, limit_bytes)
    view = _memory(size)

    def work(queue: Iterator[tuple[str, int, int, int]]) -> None:
        with contextlib.ExitStack() as opened:
            connection: _Connection | None = None
            for url, start, end, place in queue:
                if connection is None or not connection.leads_to(url):
                    connection = opened.enter_context(contextlib.closing(_Connection(url, tls)))
                early = connection.get(url, sign, start, end)
                view[place : place + len(early)] = early
                connection.receive(view[place + len(early) : place + end - start])

    share(work, ranges, connections)
    return view


def read_all(files: Iterable[tuple[str, int]], threads: int, limit_bytes: int | None = None) -> memoryview:
    """Read files (path, size) whole by preadv, one after another in memory. Raises WireError, OSError."""
    ranges, size = _ranges(files, limit_bytes)
    view = _memory(size)

    def work(queue: Iterator[tuple[str, int, int, int]]) -> None:
        with contextlib.ExitStack() as opened:
            descriptors: dict[str, int] = {}
            for path, start, end, place in queue:
                if path not in descriptors:
                    descriptors[path] = os.open(path, os.O_RDONLY)
                    opened.callback(os.close, descriptors[path])
                at = start
                while at < end:
                    target = view[place + at - start : place + end - start]
                    count = os.preadv(descriptors[path], [target], at)
                    if count == 0:
                        raise WireError(f"{path} is shorter than it was.")
                    at += count

    share(work, ranges, threads)
    return view


def _ranges(
    objects: Iterable[tuple[str, int]], limit_bytes: int | None
) -> tuple[list[tuple[str, int, int, int]], int]:
    """(name, start, end, place in memory) of each read; and the bytes of all."""
    ranges: list[tuple[str, int, int, int]] = []
    place = 0
    for name, size in objects:
        for start in range(0, size, CHUNK_BYTES):
            if limit_bytes is not None and place >= limit_bytes:
                return ranges, place
            end = min(start + CHUNK_BYTES, size)
            ranges.append((name, start, end, place))
            place += end - start
    return ranges, place


def _memory(size_bytes: int) -> memoryview:
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:size_bytes]


class _Connection:
    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._origin = _origin(parts)
        self._socket = socket.create_connection((parts.hostname, parts.port or _port(parts)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "https":
            assert tls is not None
            self._socket = tls.wrap_socket(self._socket, server_hostname=parts.hostname)
        self._socket.settimeout(None)  # Python's own time-out would poll before each receive

    def leads_to(self, url: str) -> bool:
        return _origin(urlsplit(url)) == self._origin

    def get(self, url: str, sign: Sign, start: int, end: int) -> bytes:
        """Ask for a range; what of it came with the head."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = "".join(f"{name}: {value}\r\n" for name, value in sign(url, f"bytes={start}-{end - 1}"))
        self._socket.sendall(f"GET {target} HTTP/1.1\r\n{headers}\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = self._socket.recv(16384)
            if not part:
                raise WireError(f"{self._origin} closed a connection before its answer was complete.")
            head += part
        head, early = head.split(b"\r\n\r\n", 1)
        status = head.partition(b"\r\n")[0].decode("latin-1")
        if status.split(" ")[1:2] != ["206"]:
            raise WireError(
                f"{self._origin} answers a ranged GET with {status.partition(' ')[2]!r}, not with 206."
            )
        return early

    def receive(self, view: memoryview) -> None:
        at, size, receive = 0, len(view), self._socket.recv_into
        while at < size:
            count = receive(view[at:], size - at)
            if count == 0:
                raise WireError(f"{self._origin} closed a connection in a body.")
            at += count

    def close(self) -> None:
        self._socket.close()


def _origin(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}"


def _port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80
