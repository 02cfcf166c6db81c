"""One HTTP/1.1 connection: heads by h11, bodies received straight into the caller's memory."""

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import h11

from headrace.store.errors import StoreError, TimedOut, TransientError
from headrace.store.http.connect import Endpoint, client_certificate_error, open_socket, start_tls
from headrace.store.http.fill import Counter, fill, fill_decrypted, let_kernel_wait, set_timeout
from headrace.store.http.tunnel import open_tunnel, refusal

STALL_TIMEOUT_S = 30.0
# Whoever waits for the first answer waits at a terminal.
FIRST_STALL_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 64 << 10
_RECEIVE_BYTES = 16 << 10
_MAX_ERROR_BODY = 64 << 10
_BODILESS = (204, 304)
# What a broken connection or an answer that is none raises.
_BROKEN = (OSError, h11.RemoteProtocolError)


@dataclass(frozen=True, slots=True)
class Head:
    """A response's status and headers (lower-case names)."""

    status: int
    headers: dict[str, str]


class ConnectionLost(TransientError):
    """The other end closed or reset the connection."""


class HttpConnection:
    """A keep-alive connection. Belongs to one thread; only `abort` may come from another.

    `request` then `fill`, `read_into` (until 0) or `read_body`, again and again. After any error the
    connection is closed; the next request connects anew.

    Attributes:
        endpoint: where it leads.
    """

    def __init__(self, endpoint: Endpoint, *, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        """Args: stall_timeout_s: how long the other end may send nothing, or take nothing."""
        self.endpoint = endpoint
        self._stall_timeout_s = stall_timeout_s
        self._socket: socket.socket | None = None
        self._owner = 0  # the process that opened it
        self._lock = threading.Lock()
        self._aborted = False
        self._parser: h11.Connection | None = None
        self._early = b""  # body bytes that came with the head
        self._left: int | None = 0  # body bytes to come, None when the parser must unwrap them
        self._reuse = False
        self._kernel_waits = False  # under TLS

    def be_patient(self, stall_timeout_s: float) -> None:
        """Bear silences of this length from now on."""
        if stall_timeout_s == self._stall_timeout_s:
            return
        self._stall_timeout_s = stall_timeout_s
        if self._socket is not None:
            self._wait_here(self._socket)

    def request(
        self,
        target: str,
        headers: Sequence[tuple[str, str]],
        *,
        method: str = "GET",
        body: bytes | memoryview | None = None,
    ) -> Head:
        """Send a request and read the response's head.

        Args:
            headers: with a Host among them.
            method: an answer to HEAD has no body.
            body: sent with its length, again where a kept connection turns out to be closed; None for none.

        Raises:
            Unreachable: the host does not resolve or refuses the connection.
            TlsError: the handshake failed.
            AccessDenied: a proxy does not let us pass.
            TransientError: reset, time-out or a broken response.
        """
        proxy = self.endpoint.proxy
        if proxy is not None and self.endpoint.scheme == "http":
            # With the Host as it is sent: a proxy puts the one of the address in its place, which may be signed.
            target = f"http://{next(value for name, value in headers if name == 'Host')}{target}"
            if proxy.authorization:
                headers = [*headers, ("Proxy-Authorization", proxy.authorization)]
        if body is not None:
            headers = [*headers, ("Content-Length", str(len(body)))]
        # A process that was forked shares its parent's sockets: two that ask through one mix up the answers.
        if self._left != 0 or self._is_another_process() or not _is_quiet(self._socket):
            self.close()  # or the last body was not read to its end, or something came after it
        kept = self._socket is not None
        try:
            return self._exchange(method, target, headers, body)
        except ConnectionLost:
            if not kept or self._aborted:
                raise
        # A kept connection that the server closed meanwhile: once more on a new one.
        return self._exchange(method, target, headers, body)

    def _exchange(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes | memoryview | None
    ) -> Head:
        connection = self._socket or self._connect()
        if self._kernel_waits:
            self._wait_here(connection)
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        data = parser.send(h11.Request(method=method, target=target, headers=list(headers)))
        assert data is not None
        self._left = None  # until the body's end is seen the connection cannot be used again
        try:
            connection.sendall(data)
            if body:
                # Refused before all of it has come: the answer says why.
                with contextlib.suppress(ConnectionError):
                    connection.sendall(body)
            response = _read_head(parser, connection)
        except _BROKEN as error:
            raise self._failed(error) from None
        head = Head(
            response.status_code,
            {name.decode().lower(): value.decode("latin-1") for name, value in response.headers},
        )
        if head.status == 407 and self.endpoint.proxy is not None:
            self.close()
            raise refusal(self.endpoint, self.endpoint.proxy, head.status)
        self._parser = parser
        self._reuse = (
            response.http_version == b"1.1" and "close" not in head.headers.get("connection", "").lower()
        )
        self._early = b""
        length = head.headers.get("content-length")
        if head.status in _BODILESS or method == "HEAD":
            length = "0"
        if length is not None and ("transfer-encoding" not in head.headers or method == "HEAD"):
            self._left = int(length)  # h11 has checked that it is digits
            self._early = parser.trailing_data[0]
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
            count = self._take_early(view[:wanted])
        else:
            assert self._socket is not None
            if self._kernel_waits:
                self._wait_here(self._socket)
            try:
                count = self._socket.recv_into(view, wanted)
            except OSError as error:
                raise self._failed(error) from None
            if count == 0:
                raise self._cut_off()
        self._left -= count
        if self._left == 0:
            self._finish()
        return count

    def fill(self, view: memoryview, counter: Counter) -> int:
        """Receive body bytes until `view` is full, where the body's length is known; how many, 0 at the body's end.

        What arrives counts in `counter` at once, also where an error follows.

        Raises:
            TransientError: the connection broke, stalled or ended before the body did.
        """
        if not self._left or self._early:
            count = self.read_into(view)
            counter.received += count
            return count
        connection = self._socket
        assert connection is not None
        portion = view if len(view) <= self._left else view[: self._left]
        try:
            if isinstance(connection, ssl.SSLSocket):
                if not self._kernel_waits:
                    let_kernel_wait(connection)
                    self._kernel_waits = True
                count = fill_decrypted(connection, portion, counter, self._stall_timeout_s)
            else:
                count = fill(connection, portion, counter)
        except OSError as error:
            raise self._failed(error) from None
        self._left -= count
        if count < len(portion):
            raise self._cut_off()
        if self._left == 0:
            self._finish()
        return count

    def _wait_here(self, connection: socket.socket) -> None:
        """Let waits end after the stall's time, whatever is read or written."""
        set_timeout(connection, self._stall_timeout_s)
        self._kernel_waits = False

    def _cut_off(self) -> StoreError:
        return self._failed(
            ConnectionResetError(f"connection closed with {self._left:,} bytes of the body to come")
        )

    def _unwrap_into(self, view: memoryview) -> int:
        """The slow way, for chunked bodies and bodies that end with the connection."""
        assert self._parser is not None and self._socket is not None
        while not self._early:
            try:
                event = self._parser.next_event()
                if event is h11.NEED_DATA:
                    self._parser.receive_data(self._socket.recv(1 << 18))
                    continue
            except _BROKEN as error:
                raise self._failed(error) from None
            if isinstance(event, h11.Data):
                self._early = bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._early = self._parser.trailing_data[0]
                self._left = 0
                self._finish()
                return 0
            else:
                raise self._failed(ConnectionResetError("connection closed in the body"))
        return self._take_early(view)

    def _take_early(self, view: memoryview) -> int:
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
        """End whatever is under way in another thread; later requests fail."""
        with self._lock:
            self._aborted = True
            if self._socket is not None and not self._is_another_process():
                _shut_down(self._socket)

    def close(self) -> None:
        """Close the connection; a later request opens a new one."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        self._left, self._early = 0, b""

    def _is_another_process(self) -> bool:
        return self._socket is not None and self._owner != os.getpid()

    def _finish(self) -> None:
        # Bytes beyond the body's end belong to nothing that was asked for.
        if self._early or not self._reuse:
            self.close()

    def _connect(self) -> socket.socket:
        try:
            connection = open_socket(self.endpoint, self._register)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.endpoint.scheme == "https":
                if self.endpoint.proxy is not None:
                    open_tunnel(connection, self.endpoint, self.endpoint.proxy)
                connection = start_tls(connection, self.endpoint, self._register)
            self._wait_here(connection)
        except BaseException:
            self.close()
            raise
        return connection

    def _register(self, connection: socket.socket) -> None:
        """Make a socket known to `abort`."""
        with self._lock:
            self._socket, self._owner = connection, os.getpid()
            aborted = self._aborted
        if aborted:
            raise TransientError(self.endpoint.url, "The read was cancelled.")

    def _failed(self, error: OSError | h11.RemoteProtocolError) -> StoreError:
        """What an error of the socket or the parser means for the caller; closes the connection."""
        self.close()
        if isinstance(error, h11.RemoteProtocolError):
            return TransientError(
                self.endpoint.url,
                f"The answer is not valid HTTP: {error}.",
                remedy=f"Check that the port in {self.endpoint.named_by} is the right one of that server.",
            )
        kind: type[TransientError] = ConnectionLost
        cause = f"The connection broke: {error.strerror or error}."
        if isinstance(error, BlockingIOError | ssl.SSLWantReadError | TimeoutError):
            kind, cause = TimedOut, f"No byte came for {self._stall_timeout_s:g} s."
        elif isinstance(error, ssl.SSLError):
            refused = client_certificate_error(error, self.endpoint)
            if refused is not None:
                return refused
        remedy = f"Try again; if it is always so, check the scheme and the port in {self.endpoint.named_by}."
        return kind(self.endpoint.url, cause, remedy=remedy)


def _read_head(parser: h11.Connection, connection: socket.socket) -> h11.Response:
    """The final response's head; interim ones (1xx) are passed over."""
    first = True
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("connection closed before the response's head was complete")
            if first and data[:5] != b"HTTP/"[: len(data)]:
                # Told at once: h11 would wait for the end of a line or of a head that never comes.
                raise h11.RemoteProtocolError(f"it begins with {ascii(data[:20])[1:]}")
            first = False
            parser.receive_data(data)
        elif isinstance(event, h11.Response):
            return event


def _is_quiet(connection: socket.socket | None) -> bool:
    """Whether the other end has neither closed a kept connection nor sent what nobody asked for."""
    if connection is None:
        return True
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return not poller.poll(0)


def _shut_down(connection: socket.socket) -> None:
    # The plain socket's method: SSLSocket's own would also drop the TLS layer, and a thread that goes on
    # reading would then receive ciphertext.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
