"""Opening a connection: name look-up, TCP and TLS, each within a bounded time and endable from another thread."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.store.errors import BadEndpoint, TlsError, Unreachable

CONNECT_TIMEOUT_S = 1.8  # name look-up and TCP together
TLS_TIMEOUT_S = 10.0
_PLAIN_REMEDY = "If the store speaks plain HTTP, write http:// in AWS_ENDPOINT_URL."

Address = tuple[int, int, int, str, tuple[str, int]]


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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def endpoint_of(url: str, ca_bundle: str | None) -> Endpoint:
    """The endpoint of a URL whose scheme and host were checked before."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return Endpoint(
        parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), ca_bundle
    )


def open_socket(endpoint: Endpoint, register: Callable[[socket.socket], None]) -> socket.socket:
    """A TCP connection, within CONNECT_TIMEOUT_S of the call.

    Args:
        register: is given each socket before it connects, so that another thread can shut it down.

    Raises Unreachable.
    """
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    addresses = _resolve(endpoint)
    error: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        left_s = max(deadline - time.monotonic(), 0.05) / (len(addresses) - number)
        connection = socket.socket(family, kind, protocol)
        register(connection)
        connection.settimeout(left_s)
        try:
            connection.connect(address)
            return connection
        except OSError as caught:
            connection.close()
            error = caught
    cause = "timed out" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", error))
    raise Unreachable(
        endpoint.url,
        f"No connection to the endpoint: {cause.lower()}.",
        remedy="Check that the store runs there, and AWS_ENDPOINT_URL (scheme, host and port).",
    ) from None


def _resolve(endpoint: Endpoint) -> list[Address]:
    """getaddrinfo with a time limit, which it does not have by itself."""
    found: list[list[Address]] = []
    failed: list[str] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that IDNA does not allow
            failed.append(str(getattr(error, "strerror", None) or error))

    thread = threading.Thread(target=look_up, name="name-look-up", daemon=True)
    thread.start()
    thread.join(CONNECT_TIMEOUT_S)
    if found:
        return found[0]
    why = failed[0] if failed else "the name server does not answer"
    raise Unreachable(
        endpoint.url,
        f"The host {endpoint.host} cannot be found: {why}.",
        remedy="Check the host in AWS_ENDPOINT_URL, or the name server.",
    )


def start_tls(
    raw: socket.socket, endpoint: Endpoint, register: Callable[[socket.socket], None]
) -> ssl.SSLSocket:
    """Wrap a connected socket; the caller closes what it registered where this fails.

    Raises:
        TlsError: the certificate is not trusted, or the other end does not speak TLS.
        Unreachable: the handshake was cut off or timed out.
    """
    context = tls_context(endpoint.ca_bundle)
    wrapped = context.wrap_socket(raw, server_hostname=endpoint.host, do_handshake_on_connect=False)
    register(wrapped)
    wrapped.settimeout(TLS_TIMEOUT_S)
    try:
        wrapped.do_handshake()
    except ssl.SSLCertVerificationError as error:
        trusted = endpoint.ca_bundle or "the system's CA certificates"
        raise TlsError(
            endpoint.url,
            f"The certificate of {endpoint.host} is not trusted by {trusted}: {error.verify_message}.",
            remedy="Set AWS_CA_BUNDLE to a file with the CA that signed it.",
        ) from None
    except ssl.SSLError as error:
        # Cut off in the handshake: a store that restarts does so, and some that speak plain HTTP.
        kind = Unreachable if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) else TlsError
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise kind(endpoint.url, f"The TLS handshake failed: {reason}.", remedy=_PLAIN_REMEDY) from None
    except OSError as error:
        reason = "timed out" if isinstance(error, TimeoutError) else str(error.strerror or error).lower()
        raise Unreachable(
            endpoint.url, f"The TLS handshake failed: {reason}.", remedy=_PLAIN_REMEDY
        ) from None
    return wrapped


_contexts: dict[str | None, ssl.SSLContext] = {}
_contexts_lock = threading.Lock()


def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """The process's TLS settings for one CA bundle (None: the system's). Raises BadEndpoint for a bad file."""
    with _contexts_lock:
        if ca_bundle not in _contexts:
            try:
                _contexts[ca_bundle] = ssl.create_default_context(cafile=ca_bundle)
            except OSError as error:
                raise BadEndpoint(
                    str(ca_bundle),
                    f"The CA bundle cannot be used: {error.strerror or error}.",
                    remedy="AWS_CA_BUNDLE must name a file of certificates in PEM form.",
                ) from None
        return _contexts[ca_bundle]
