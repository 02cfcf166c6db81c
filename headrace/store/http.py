"""One HTTP/1.1 connection: heads by h11, bodies received straight into the caller's memory."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from headrace.store.errors import BadEndpoint, TlsError, TransientError

CONNECT_TIMEOUT_S = 1.8
STALL_TIMEOUT_S = 30.0
_HEAD_BYTES = 16 << 10
_MAX_ERROR_BODY = 64 << 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect: scheme, host and port of one origin, and how to trust it."""

    scheme: str
    host: str
    port: int
    ca_bundle: str | None = None

    @property
    def url(self) -> str:
        """The origin as a URL, for messages."""
        return f"{self.scheme}://{self.host}:{self.port}"


def endpoint_of(url: str, ca_bundle: str | None) -> Endpoint:
    """The endpoint of a URL whose scheme and host were checked before."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return Endpoint(
        parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), ca_bundle
    )


@dataclass(frozen=True, slots=True)
class Head:
    """A response's status and headers (lower-case names)."""

    status: int
    headers: dict[str, str]


class HttpConnection:
    """A keep-alive connection. Belongs to one thread; only `abort` may come from another.

    `request` then `read_into` (until 0) or `read_body`, again and again. After any error the
    connection is closed; the next request connects anew.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._aborted = False
        self._parser: h11.Connection | None = None
        self._early = b""  # body bytes that came with the head
        self._left: int | None = None  # body bytes to come, None when the parser must unwrap them
        self._reuse = False

    def request(self, method: str, target: str, headers: Sequence[tuple[str, str]]) -> Head:
        """Send a request without a body and read the response's head.

        Raises:
            BadEndpoint: the host does not resolve or refuses the connection.
            TlsError: the handshake failed.
            TransientError: reset, time-out or a broken response.
        """
        fresh = self._socket is None
        try:
            return self._exchange(method, target, headers)
        except TransientError:
            self.close()
            if fresh or self._aborted:
                raise
        # A kept connection that the server closed meanwhile: once more on a new one.
        return self._exchange(method, target, headers)

    def _exchange(self, method: str, target: str, headers: Sequence[tuple[str, str]]) -> Head:
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES * 4)
        data = parser.send(h11.Request(method=method, target=target, headers=list(headers)))
        assert data is not None
        data += parser.send(h11.EndOfMessage()) or b""
        with self._translated():
            self._socket.sendall(data)
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    parser.receive_data(self._socket.recv(_HEAD_BYTES))
                elif isinstance(event, h11.Response):
                    break
                elif isinstance(event, h11.ConnectionClosed):
                    raise ConnectionResetError("connection closed before the response's head")
        head = Head(
            event.status_code,
            {name.decode().lower(): value.decode("latin-1") for name, value in event.headers},
        )
        self._parser = parser
        self._reuse = (
            event.http_version == b"1.1" and "close" not in head.headers.get("connection", "").lower()
        )
        length = head.headers.get("content-length")
        plain = "transfer-encoding" not in head.headers and length is not None
        self._left = int(length) if plain and length is not None and method != "HEAD" else None
        self._early = parser.trailing_data[0] if self._left is not None else b""
        return head

    def read_into(self, view: memoryview) -> int:
        """Receive body bytes into `view`; how many, 0 at the body's end.

        Raises:
            TransientError: the connection broke, stalled or ended before the body did.
        """
        if self._left is None:
            return self._unwrap_into(view)
        wanted = min(len(view), self._left)
        if wanted == 0:
            if self._left == 0:
                self._finish()
            return 0
        if self._early:
            count = min(wanted, len(self._early))
            view[:count] = self._early[:count]
            self._early = self._early[count:]
        else:
            assert self._socket is not None
            with self._translated():
                count = self._socket.recv_into(view, wanted)
                if count == 0:
                    raise ConnectionResetError(
                        f"connection closed with {self._left:,} bytes of the body to come"
                    )
        self._left -= count
        if self._left == 0:
            self._finish()
        return count

    def _unwrap_into(self, view: memoryview) -> int:
        """The slow way, for chunked bodies and bodies that end with the connection."""
        assert self._parser is not None and self._socket is not None
        while not self._early:
            with self._translated():
                event = self._parser.next_event()
                if event is h11.NEED_DATA:
                    self._parser.receive_data(self._socket.recv(1 << 18))
                elif isinstance(event, h11.Data):
                    self._early = bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._left = 0
                    self._finish()
                    return 0
                else:
                    raise ConnectionResetError("connection closed in the body")
        count = min(len(view), len(self._early))
        view[:count] = self._early[:count]
        self._early = self._early[count:]
        return count

    def read_body(self, limit_bytes: int = _MAX_ERROR_BODY) -> bytes:
        """The whole body, or its first `limit_bytes` (the connection is then closed)."""
        body = bytearray()
        buffer = memoryview(bytearray(1 << 16))
        while count := self.read_into(buffer):
            body += buffer[:count]
            if len(body) > limit_bytes:
                self.close()
                return bytes(body[:limit_bytes])
        return bytes(body)

    def abort(self) -> None:
        """End a read that is under way in another thread; later requests fail."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; a later request opens a new one."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        self._left, self._early = 0, b""

    def _finish(self) -> None:
        if not self._reuse:
            self.close()

    def _connect(self) -> None:
        endpoint = self._endpoint
        raw = _open_socket(endpoint)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = raw
        if endpoint.scheme == "https":
            connection = _start_tls(raw, endpoint)
        # Time-outs by the kernel: Python's own would poll() before each recv.
        connection.settimeout(None)
        whole, part = divmod(STALL_TIMEOUT_S, 1)
        limit = struct.pack("ll", int(whole), int(part * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with self._lock:
            if self._aborted:
                connection.close()
                raise TransientError(endpoint.url, "The read was cancelled.")
            self._socket = connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what a socket raises into TransientError, with the connection closed."""
        try:
            yield
        except (BlockingIOError, ssl.SSLWantReadError, TimeoutError):
            self.close()
            cause = f"No byte came for {STALL_TIMEOUT_S:.0f} s."
        except h11.RemoteProtocolError as error:
            self.close()
            cause = f"The answer is not valid HTTP: {error}."
        except OSError as error:
            self.close()
            cause = f"The connection broke: {error.strerror or error}."
        else:
            return
        raise TransientError(self._endpoint.url, cause)


def _open_socket(endpoint: Endpoint) -> socket.socket:
    """Connect, giving up CONNECT_TIMEOUT_S after the call, name look-up included."""
    addresses = _resolve(endpoint)
    error: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(CONNECT_TIMEOUT_S / len(addresses))
        try:
            connection.connect(address)
            return connection
        except OSError as caught:
            connection.close()
            error = caught
    cause = "timed out" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", error))
    raise BadEndpoint(
        endpoint.url,
        f"No connection to the endpoint: {cause.lower()}.",
        remedy="Check that the store runs there, and AWS_ENDPOINT_URL (scheme, host and port).",
    ) from None


def _resolve(endpoint: Endpoint) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    """getaddrinfo with a time limit, which it does not have by itself."""
    found: list[list[tuple[int, int, int, str, tuple[str, int]]]] = []
    failed: list[OSError] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(CONNECT_TIMEOUT_S)
    if found:
        return found[0]
    why = failed[0].strerror if failed else "the name server does not answer"
    raise BadEndpoint(
        endpoint.url,
        f"The host {endpoint.host} cannot be found: {why}.",
        remedy="Check the host in AWS_ENDPOINT_URL, or the name server.",
    )


def _start_tls(raw: socket.socket, endpoint: Endpoint) -> ssl.SSLSocket:
    try:
        context = _context(endpoint.ca_bundle)
        return context.wrap_socket(raw, server_hostname=endpoint.host)
    except ssl.SSLCertVerificationError as error:
        raw.close()
        trusted = endpoint.ca_bundle or "the system's CA certificates"
        raise TlsError(
            endpoint.url,
            f"The certificate of {endpoint.host} is not trusted by {trusted}: {error.verify_message}.",
            remedy="Set AWS_CA_BUNDLE to a file with the CA that signed it.",
        ) from None
    except (ssl.SSLError, OSError) as error:
        raw.close()
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise TlsError(
            endpoint.url,
            f"The TLS handshake failed: {reason}.",
            remedy="If the store speaks plain HTTP, write http:// in AWS_ENDPOINT_URL.",
        ) from None


_contexts: dict[str | None, ssl.SSLContext] = {}


def _context(ca_bundle: str | None) -> ssl.SSLContext:
    if ca_bundle not in _contexts:
        _contexts[ca_bundle] = ssl.create_default_context(cafile=ca_bundle)
    return _contexts[ca_bundle]
