"""An object store on loopback that misbehaves by script: it speaks just enough S3 for S3Store to read from it.

Ranged reads of objects take their behaviour from `script`, one entry each in the order in which they come;
when it is used up the store is honest. Signatures are not checked. Everything that was asked is in `log`.
"""

import errno
import gzip
import hashlib
import queue
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LAST_MODIFIED = "2026-01-02T03:04:05.000Z"
_LAST_MODIFIED_HTTP = "Fri, 02 Jan 2026 03:04:05 GMT"


@dataclass(frozen=True, slots=True)
class Stored:
    """An object. `etag` is as it is sent, quotes included; "" sends none."""

    data: bytes
    etag: str

    @classmethod
    def of(cls, data: bytes) -> "Stored":
        """With the ETag that S3 gives it."""
        return cls(data, f'"{hashlib.md5(data).hexdigest()}"')


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what for, with which headers (lower-case names), and on which connection (0 is the first)."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    connection: int
    method: str = "GET"

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte asked for."""
        value = self.headers.get("range", "").removeprefix("bytes=")
        if not value:
            return None
        first, _, last = value.partition("-")
        return int(first), int(last)


@dataclass(slots=True)
class Exchange:
    """One request for an object, for a behaviour to answer. `keep` False closes the connection afterwards.

    While it `counts` it is one of those that are being answered.
    """

    server: "FaultServer"
    socket: socket.socket
    asked: Asked
    stored: Stored
    keep: bool = True
    counts: bool = True

    @property
    def span(self) -> tuple[int, int]:
        """The bytes asked for, [first, end)."""
        first, last = self.asked.range or (0, len(self.stored.data) - 1)
        return first, min(last + 1, len(self.stored.data))

    @property
    def wanted(self) -> bytes:
        """The body of an honest answer."""
        first, end = self.span
        return self.stored.data[first:end]

    def send(self, data: bytes | memoryview) -> None:
        """Write to the connection."""
        self.socket.sendall(data)

    def head(self, *, status: int = 206, length: int | None = None, **headers: str | None) -> None:
        """Write an honest answer's head. Keywords replace headers (Content_Range=...); None leaves one out."""
        first, end = self.span
        fields: dict[str, str | None] = {
            "ETag": self.stored.etag or None,
            "Last-Modified": _LAST_MODIFIED_HTTP,
            "Content-Length": str(end - first if length is None else length),
            "Content-Range": f"bytes {first}-{end - 1}/{len(self.stored.data)}" if status == 206 else None,
        }
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        self.send(head_bytes(status, {name: value for name, value in fields.items() if value is not None}))

    def reset(self) -> None:
        """End the connection with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.keep = False


Behaviour = Callable[[Exchange], None]


def head_bytes(status: int, headers: dict[str, str]) -> bytes:
    """A response head."""
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def error_answer(status: int, code: str = "", **headers: str) -> bytes:
    """A whole error response as S3 sends it; without a code it has no body."""
    body = f"<Error><Code>{code}</Code><Message>Scripted.</Message></Error>".encode() if code else b""
    fields = {"Content-Length": str(len(body)), "x-amz-request-id": "REQ1"}
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    return head_bytes(status, fields) + body


class FaultServer:
    """Listens on a free port of `host` until `stop`.

    Attributes:
        objects: key → object, of the one bucket "bucket".
        script: how coming reads of objects behave.
        list_script: whole answers to coming listings, before honest ones.
        page_keys: keys in one page of a listing.
        refuse: asked of every request; what it returns is the whole answer instead.
        usual: how reads of objects behave that the script says nothing of.
        bears: reads that it answers at once; more are answered 503.
        head_fields: more headers of answers to HEAD, which are honest and not in the script.
        log: every request, in order of arrival.
        levels: for each read that was answered, how many were being answered at its start.
        refused: how many reads were answered 503 for more than it bears.
    """

    def __init__(
        self,
        objects: dict[str, Stored],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.objects = objects
        self.script: deque[Behaviour] = deque()
        self.list_script: deque[bytes] = deque()
        self.page_keys = 1000
        self.refuse: Callable[[Asked], bytes | None] = lambda asked: None
        self.head_fields: dict[str, str | None] = {}
        self.usual: Behaviour = honest
        self.bears: int | None = None
        self.log: list[Asked] = []
        self.levels: list[int] = []
        self.refused = 0
        self._busy = 0
        self.stopped = threading.Event()
        self.stalled: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self._tls = tls
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self.port: int = self._listener.getsockname()[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"
        self._accepter = threading.Thread(target=self._accept, name="fault-server", daemon=True)
        self._accepter.start()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges of objects that were asked for, in order."""
        return [asked.range for asked in self.log if asked.range is not None]

    def play(self, *behaviours: Behaviour) -> None:
        """Let the coming reads behave so."""
        self.script.extend(behaviours)

    def wait_until_closed(self) -> None:
        """Return when the clients have closed every connection that there was."""
        for thread in list(self._threads):
            thread.join()

    def stop(self) -> None:
        """End every connection and thread. A second call does nothing."""
        if self.stopped.is_set():
            return
        self.stopped.set()
        # A listener that is closed does not wake its accept(); one that is shut down does.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepter.join()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client was first
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        for number in range(1 << 30):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno == errno.EMFILE:  # a test lets this process open no more files, for a moment
                    continue
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(connection, number), daemon=True)
            with self._lock:
                self._open.add(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls:
                connection = self._with_tls(connection, self._tls)
            for asked in _requests(connection, number):
                with self._lock:
                    self.log.append(asked)
                if not self._answer(connection, asked):
                    return
        except (ConnectionError, ssl.SSLError):
            pass  # the client has gone, as it may
        finally:
            with self._lock:
                self._open.discard(connection)
                connection.close()

    def _with_tls(self, connection: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        with self._lock:
            self._open.discard(connection)
            wrapped = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            self._open.add(wrapped)
        wrapped.do_handshake()
        return wrapped

    def _answer(self, connection: socket.socket, asked: Asked) -> bool:
        """Answer one request; whether the connection goes on."""
        if (refusal := self.refuse(asked)) is not None:
            connection.sendall(refusal)
            return True
        key = asked.path.removeprefix("/bucket/")
        if not key:
            connection.sendall(self.list_script.popleft() if self.list_script else self.listing(asked.query))
            return True
        if key not in self.objects:
            connection.sendall(error_answer(404, "NoSuchKey"))
            return True
        exchange = Exchange(self, connection, asked, self.objects[key])
        if asked.method == "HEAD":
            exchange.head(status=200, **self.head_fields)
            return True
        with self._lock:
            if self.bears is not None and self._busy >= self.bears:
                self.refused += 1
                behaviour = error(503, "SlowDown")
            else:
                behaviour = self.script.popleft() if self.script else self.usual
                self.levels.append(self._busy + 1)
            self._busy += 1
        try:
            behaviour(exchange)
        finally:
            self.leave(exchange)
        return exchange.keep

    def leave(self, exchange: Exchange) -> None:
        """Count an exchange no longer among those that are being answered."""
        with self._lock:
            if exchange.counts:
                exchange.counts = False
                self._busy -= 1

    def listing(self, query: dict[str, str]) -> bytes:
        """An honest answer to ListObjectsV2."""
        prefix, token = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > token)
        page, more = keys[: self.page_keys], len(keys) > self.page_keys
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key].data)}</Size>"
            f"<LastModified>{LAST_MODIFIED}</LastModified><ETag>{escape(self.objects[key].etag)}</ETag></Contents>"
            for key in page
        )
        rest = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return list_answer(f"<IsTruncated>{str(more).lower()}</IsTruncated>{rest}{entries}")


def list_answer(inner: str) -> bytes:
    """A whole listing response around what a ListBucketResult holds."""
    body = f'<?xml version="1.0"?><ListBucketResult>{inner}</ListBucketResult>'.encode()
    return head_bytes(200, {"Content-Length": str(len(body))}) + body


def _requests(connection: socket.socket, number: int) -> Iterator[Asked]:
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            data = connection.recv(1 << 16)
            if not data:
                return
            buffer += data
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        target = urlsplit(first.split(" ")[1])
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        yield Asked(unquote(target.path), query, headers, number, first.split(" ")[0])


# ---- behaviours


def honest(exchange: Exchange) -> None:
    """What a good store does, conditions and ranges checked."""
    condition = exchange.asked.headers.get("if-match")
    first, end = exchange.span
    if condition is not None and condition != exchange.stored.etag:
        exchange.send(error_answer(412, "PreconditionFailed"))
    elif exchange.asked.range is None:
        whole(exchange)
    elif first >= end:
        exchange.send(error_answer(416, "InvalidRange"))
    else:
        exchange.head()
        exchange.send(exchange.wanted)


def error(status: int, code: str = "", **headers: str) -> Behaviour:
    """An error answer."""

    def behave(exchange: Exchange) -> None:
        exchange.send(error_answer(status, code, **headers))

    return behave


def close_before_head(exchange: Exchange) -> None:
    """The connection ends instead of an answer."""
    exchange.keep = False


def close_in_head(exchange: Exchange) -> None:
    """The connection ends in the middle of the head."""
    exchange.send(b"HTTP/1.1 206 Partial Content\r\nContent-Le")
    exchange.keep = False


def garbage(exchange: Exchange) -> None:
    """Something that is no HTTP."""
    exchange.send(b"\x00\x01 this is no HTTP\r\n\r\n")
    exchange.keep = False


def oversized_head(exchange: Exchange) -> None:
    """A head that does not end."""
    exchange.send(b"HTTP/1.1 206 Partial Content\r\nX-Filler: " + b"x" * (1 << 18))
    exchange.keep = False


def short_body(after: int) -> Behaviour:
    """The connection closes after some bytes of the body; 0 is after the head."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted[:after])
        exchange.keep = False

    return behave


def reset_body(after: int) -> Behaviour:
    """The connection is reset after some bytes of the body, which may take those with it."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted[:after])
        exchange.reset()

    return behave


def stall(after: int) -> Behaviour:
    """Some bytes of the body, then nothing until the server stops."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted[:after])
        exchange.server.stalled.put(exchange.asked)
        exchange.server.stopped.wait()
        exchange.keep = False

    return behave


def stall_before_head(exchange: Exchange) -> None:
    """Nothing until the server stops."""
    exchange.server.stalled.put(exchange.asked)
    exchange.server.stopped.wait()
    exchange.keep = False


def trickle(size: int) -> Behaviour:
    """The whole answer, head too, in segments of `size` bytes."""

    def behave(exchange: Exchange) -> None:
        first, end = exchange.span
        total = len(exchange.stored.data)
        headers = {"ETag": exchange.stored.etag, "Content-Length": str(end - first)}
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{total}"
        answer = head_bytes(206, headers) + exchange.wanted
        for at in range(0, len(answer), size):
            exchange.send(answer[at : at + size])

    return behave


def paced(bytes_per_s: float, piece: int = 8 << 10) -> Behaviour:
    """An honest answer at no more than a rate."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        body = memoryview(exchange.wanted)
        start = time.monotonic()
        for at in range(0, len(body), piece):
            ahead_s = (at + piece) / bytes_per_s - (time.monotonic() - start)
            if ahead_s > 0 and exchange.server.stopped.wait(ahead_s):
                exchange.keep = False
                return
            if at + piece >= len(
                body
            ):  # who has the last byte may ask for more before this thread runs again
                exchange.server.leave(exchange)
            exchange.send(body[at : at + piece])

    return behave


def drip(after: int, every_s: float = 0.01) -> Behaviour:
    """Some bytes of the body, then one at a time for as long as there are any."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        body = exchange.wanted
        exchange.send(body[:after])
        exchange.server.stalled.put(exchange.asked)
        for at in range(after, len(body)):
            if exchange.server.stopped.wait(every_s):
                exchange.keep = False
                return
            exchange.send(body[at : at + 1])

    return behave


def held(after: int, until: threading.Event) -> Behaviour:
    """Some bytes of the body; the rest when `until` is set."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted[:after])
        exchange.server.stalled.put(exchange.asked)
        until.wait()
        exchange.send(exchange.wanted[after:])

    return behave


def late(until: threading.Event) -> Behaviour:
    """Nothing until `until` is set, then an honest answer."""

    def behave(exchange: Exchange) -> None:
        exchange.server.stalled.put(exchange.asked)
        until.wait()
        honest(exchange)

    return behave


def content_range(value: str | None) -> Behaviour:
    """The right bytes under another Content-Range, or without any."""

    def behave(exchange: Exchange) -> None:
        exchange.head(Content_Range=value)
        exchange.send(exchange.wanted)

    return behave


def shifted(by: int) -> Behaviour:
    """Another range of the same length, and the head says so."""

    def behave(exchange: Exchange) -> None:
        first, end = exchange.span
        total = len(exchange.stored.data)
        exchange.head(Content_Range=f"bytes {first + by}-{end - 1 + by}/{total}")
        exchange.send(exchange.stored.data[first + by : end + by])

    return behave


def whole(exchange: Exchange) -> None:
    """The whole object with 200, as servers that do not know ranges send it."""
    exchange.head(status=200, length=len(exchange.stored.data))
    exchange.send(exchange.stored.data)


def chunked(size: int, *, end: bool = True, extra: bytes = b"", stop_after: int | None = None) -> Behaviour:
    """A chunked body in pieces of `size`; `end` False closes before the end mark, `extra` comes before it."""

    def behave(exchange: Exchange) -> None:
        exchange.head(Content_Length=None, Transfer_Encoding="chunked")
        body = (exchange.wanted if stop_after is None else exchange.wanted[:stop_after]) + extra
        for at in range(0, len(body), size):
            piece = body[at : at + size]
            exchange.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if end:
            exchange.send(b"0\r\n\r\n")
        exchange.keep = end

    return behave


def until_close(after: int | None = None) -> Behaviour:
    """A body without a length, which ends with the connection; `after` ends it early."""

    def behave(exchange: Exchange) -> None:
        exchange.head(Content_Length=None, Connection="close")
        exchange.send(exchange.wanted if after is None else exchange.wanted[:after])
        exchange.keep = False

    return behave


def encoded(encoding: str) -> Behaviour:
    """An answer that claims a Content-Encoding."""

    def behave(exchange: Exchange) -> None:
        exchange.head(Content_Encoding=encoding)
        exchange.send(exchange.wanted)

    return behave


def gzipped(exchange: Exchange) -> None:
    """The right bytes, compressed, and the head says so."""
    body = gzip.compress(exchange.wanted)
    exchange.head(length=len(body), Content_Encoding="gzip")
    exchange.send(body)


def gzipped_on_the_way(exchange: Exchange) -> None:
    """The right bytes, compressed by whoever passes them on: a transfer encoding that nobody asked for."""
    body = gzip.compress(exchange.wanted)
    exchange.head(Content_Length=None, Transfer_Encoding="gzip, chunked")
    exchange.send(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")


def duplicated(exchange: Exchange) -> None:
    """The body comes twice, under a length of both."""
    exchange.head(length=2 * len(exchange.wanted))
    exchange.send(exchange.wanted * 2)


def duplicated_chunked(exchange: Exchange) -> None:
    """The body comes twice, without a length."""
    chunked(1 << 20, extra=exchange.wanted)(exchange)


def tagged(etag: str) -> Behaviour:
    """An answer with another ETag, by a store that ignores If-Match."""

    def behave(exchange: Exchange) -> None:
        exchange.head(ETag=etag or None)
        exchange.send(exchange.wanted)

    return behave


def longer_body(extra: int) -> Behaviour:
    """Content-Length and body are longer than the range."""

    def behave(exchange: Exchange) -> None:
        exchange.head(length=len(exchange.wanted) + extra)
        exchange.send(exchange.wanted + b"?" * extra)

    return behave


def surplus(extra: bytes, sent: threading.Event) -> Behaviour:
    """An honest answer, and then bytes that nobody asked for; `sent` is set after them."""

    def behave(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted)
        exchange.send(extra)
        sent.set()

    return behave


def surplus_at_once(extra: bytes) -> Behaviour:
    """The same, in one piece, so that it arrives with the head."""

    def behave(exchange: Exchange) -> None:
        first, end = exchange.span
        headers = {"Content-Length": str(end - first), "ETag": exchange.stored.etag}
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(exchange.stored.data)}"
        exchange.send(head_bytes(206, headers) + exchange.wanted + extra)

    return behave


def interim(exchange: Exchange) -> None:
    """1xx answers before the honest one."""
    exchange.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
    honest(exchange)


def close_after(exchange: Exchange) -> None:
    """An honest answer; the connection is closed after it without a word."""
    honest(exchange)
    exchange.keep = False


def connection_close(exchange: Exchange) -> None:
    """An honest answer that says Connection: close, and keeps it open all the same."""
    exchange.head(Connection="close")
    exchange.send(exchange.wanted)


def replace_first(key: str, stored: Stored) -> Behaviour:
    """The object is overwritten just before an honest answer."""

    def behave(exchange: Exchange) -> None:
        exchange.server.objects[key] = stored
        exchange.stored = stored
        honest(exchange)

    return behave


@contextmanager
def fault_server(objects: dict[str, bytes], script: Iterable[Behaviour] = ()) -> Iterator[FaultServer]:
    """A running server with these objects."""
    server = FaultServer({key: Stored.of(data) for key, data in objects.items()})
    server.play(*script)
    try:
        yield server
    finally:
        server.stop()
