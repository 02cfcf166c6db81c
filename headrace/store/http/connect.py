"""Opening a connection: name look-up, TCP and TLS, each within a bounded time and endable from another thread."""

import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.store.errors import OPEN_FILES_REMEDY, StoreError, TlsError, TransientError, Unreachable
from headrace.store.http.proxy import Proxy, proxy_for
from headrace.store.http.trust import CLIENT_CERTIFICATE_VARIABLE, SYSTEM_TRUST, Trust, tls_context
from headrace.store.threads import TooManyThreads, start

CONNECT_TIMEOUT_S = 1.8  # name look-up and TCP together
TLS_TIMEOUT_S = 10.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
_logger = logging.getLogger(__name__)

Address = tuple[int, int, int, str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect: scheme, host and port of one origin, how to trust it and through what.

    Attributes:
        named_by: what a person corrects if it is wrong: the URL, or the name of a setting.
    """

    scheme: str
    host: str
    port: int
    trust: Trust = SYSTEM_TRUST
    proxy: Proxy | None = None
    named_by: str = "the URL"

    @property
    def authority(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The origin as a URL, for messages."""
        return f"{self.scheme}://{self.authority}"


def endpoint_of(url: str, trust: Trust = SYSTEM_TRUST, *, named_by: str = "the URL") -> Endpoint:
    """The endpoint of a URL whose scheme and host were checked before, through the environment's proxy.

    Raises BadEndpoint for a proxy's address that is none.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    proxy = proxy_for(parts.scheme, parts.hostname, port)
    return Endpoint(parts.scheme, parts.hostname, port, trust, proxy, named_by)


def open_socket(endpoint: Endpoint, register: Callable[[socket.socket], None]) -> socket.socket:
    """A TCP connection to the endpoint or its proxy, within CONNECT_TIMEOUT_S of the call.

    Args:
        register: is given each socket before it connects, so that another thread can shut it down.

    Raises:
        Unreachable: nothing answers there.
        TransientError: this process may not open another socket.
    """
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    addresses = _resolve(endpoint)
    error: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        left_s = max(deadline - time.monotonic(), 0.05) / (len(addresses) - number)
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as caught:
            raise _no_socket(endpoint, caught) from None
        register(connection)
        connection.settimeout(left_s)
        try:
            connection.connect(address)
            return connection
        except OSError as caught:
            connection.close()
            error = caught
    cause = "timed out" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", error))
    if (proxy := endpoint.proxy) is not None:
        said = f"No connection to the proxy {proxy.url}: {cause.lower()}."
        raise Unreachable(endpoint.url, said, remedy=proxy.remedy) from None
    raise Unreachable(
        endpoint.url,
        f"No connection to the endpoint: {cause.lower()}.",
        remedy=f"Check that it runs, and {endpoint.named_by} (scheme, host and port).",
    ) from None


def _no_socket(endpoint: Endpoint, error: OSError) -> TransientError:
    """This process's open files, or the system's memory, are used up; other threads may give some back."""
    why = (error.strerror or str(error)).lower()
    return TransientError(endpoint.url, f"No connection can be opened: {why}.", remedy=OPEN_FILES_REMEDY)


def _resolve(endpoint: Endpoint) -> list[Address]:
    """getaddrinfo with a time limit, which it does not have by itself."""
    found: list[list[Address]] = []
    failed: list[OSError | UnicodeError] = []
    proxy = endpoint.proxy
    host, port = (proxy.host, proxy.port) if proxy else (endpoint.host, endpoint.port)

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that IDNA does not allow
            failed.append(error)

    thread = threading.Thread(target=look_up, name="name-look-up", daemon=True)
    try:
        start(thread)
        thread.join(CONNECT_TIMEOUT_S)
    except TooManyThreads:  # the name server's own time-out has to do
        look_up()
    if found:
        return found[0]
    why = "the name server does not answer"
    for error in failed:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise _no_socket(endpoint, error)
        why = str(getattr(error, "strerror", None) or error)
    if proxy is not None:
        said = f"The proxy {host} cannot be found: {why}."
        raise Unreachable(endpoint.url, said, remedy=proxy.remedy)
    raise Unreachable(
        endpoint.url,
        f"The host {host} cannot be found: {why}.",
        remedy=f"Check the host in {endpoint.named_by}, or the name server.",
    )


def start_tls(
    raw: socket.socket, endpoint: Endpoint, register: Callable[[socket.socket], None]
) -> ssl.SSLSocket:
    """Wrap a connected socket; the caller closes what it registered where this fails.

    Raises:
        TlsError: the certificate is not trusted, or the other end does not speak TLS.
        Unreachable: the handshake was cut off or timed out.
    """
    context = tls_context(endpoint.trust)
    if endpoint.trust.insecure:
        warn_of_insecurity(endpoint.url)
    wrapped = context.wrap_socket(raw, server_hostname=endpoint.host, do_handshake_on_connect=False)
    register(wrapped)
    wrapped.settimeout(TLS_TIMEOUT_S)
    plain_remedy = f"If it speaks plain HTTP, write http:// in {endpoint.named_by}."
    try:
        wrapped.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise _not_trusted(error, endpoint) from None
    except ssl.SSLError as error:
        if (refused := client_certificate_error(error, endpoint)) is not None:
            raise refused from None
        # Cut off in the handshake: a store that restarts does so, and some that speak plain HTTP.
        kind = Unreachable if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) else TlsError
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise kind(endpoint.url, f"The TLS handshake failed: {reason}.", remedy=plain_remedy) from None
    except OSError as error:
        reason = "timed out" if isinstance(error, TimeoutError) else str(error.strerror or error).lower()
        raise Unreachable(endpoint.url, f"The TLS handshake failed: {reason}.", remedy=plain_remedy) from None
    return wrapped


def _not_trusted(error: ssl.SSLCertVerificationError, endpoint: Endpoint) -> TlsError:
    why = error.verify_message.rstrip(".")
    remedy = f"Set {endpoint.trust.ca_variable} to a file with the CA that signed it."
    if "mismatch" in why:  # of the host's name, or its IP address
        remedy = f"Write the name that the certificate is made for in {endpoint.named_by}, or have one made for this."
    elif "expired" in why or "not yet valid" in why:
        remedy = "Have it renewed, and check this machine's clock."
    return TlsError(
        endpoint.url,
        f"The certificate of {endpoint.host} is not trusted by {endpoint.trust.authorities}: {why}.",
        remedy=remedy,
    )


def client_certificate_error(error: ssl.SSLError, endpoint: Endpoint) -> StoreError | None:
    """The typed error where the other end is not content with our own certificate, or with having none.

    In TLS 1.3 it says so only after the handshake, in place of the first answer.
    """
    reason = error.reason or ""
    if "ALERT" not in reason or not ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return None
    shown = endpoint.trust.client_certificate
    return TlsError(
        endpoint.url,
        f"The server refuses the client certificate {shown}: {reason.replace('_', ' ').lower()}."
        if shown
        else "The server asks for a client certificate.",
        remedy=f"Name one that it trusts in {CLIENT_CERTIFICATE_VARIABLE}.",
    )


_insecure_urls: set[str] = set()


def warn_of_insecurity(url: str) -> None:
    """Say, once for each endpoint, that its certificate is not checked."""
    if url not in _insecure_urls:
        _insecure_urls.add(url)
        _logger.warning(
            "%s: its certificate is NOT checked, as was asked for: whoever is on the way can read and change "
            "everything, credentials and weights.",
            url,
        )
