"""A way through a proxy to a TLS endpoint: CONNECT, as RFC 9110 section 9.3.6 has it."""

import socket

import h11

from headrace.store.errors import AccessDenied, BadEndpoint, StoreError, Unreachable
from headrace.store.http.connect import Endpoint
from headrace.store.http.proxy import Proxy

TUNNEL_TIMEOUT_S = 10.0
_MAX_HEAD_BYTES = 64 << 10


def open_tunnel(connection: socket.socket, endpoint: Endpoint, proxy: Proxy) -> None:
    """Ask the proxy to pass on whatever follows.

    Raises:
        AccessDenied: the proxy wants to know who asks.
        BadEndpoint: it refuses, or is no proxy.
        Unreachable: it does not answer, or does not reach the endpoint.
    """
    connection.settimeout(TUNNEL_TIMEOUT_S)
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    headers = [("Host", endpoint.authority), ("User-Agent", "headrace")]
    if proxy.authorization:
        headers.append(("Proxy-Authorization", proxy.authorization))
    request = h11.Request(method="CONNECT", target=endpoint.authority, headers=headers)
    try:
        connection.sendall(parser.send(request) or b"")
        event = parser.next_event()
        while event is h11.NEED_DATA or isinstance(event, h11.InformationalResponse):
            if event is h11.NEED_DATA:
                data = connection.recv(1 << 14)
                if not data:
                    raise ConnectionResetError("it closed the connection")
                parser.receive_data(data)
            event = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise BadEndpoint(
            endpoint.url,
            f"The proxy {proxy.url} does not answer as a proxy does: {error}.",
            remedy=proxy.remedy,
        ) from None
    except OSError as error:
        cause = "timed out" if isinstance(error, TimeoutError) else str(error.strerror or error).lower()
        raise Unreachable(
            endpoint.url, f"The proxy {proxy.url} does not answer: {cause}.", remedy=proxy.remedy
        ) from None
    assert isinstance(event, h11.Response)
    if not 200 <= event.status_code < 300:
        raise refusal(endpoint, proxy, event.status_code)


def refusal(endpoint: Endpoint, proxy: Proxy, status: int) -> StoreError:
    """What a proxy's own error answer means."""
    if status == 407:
        return AccessDenied(
            endpoint.url,
            f"The proxy {proxy.url} does not let this user pass.",
            remedy=f"Put the user and password into {proxy.variable}: http://USER:PASSWORD@HOST:PORT.",
            status=status,
        )
    if status >= 500:
        return Unreachable(
            endpoint.url,
            f"The proxy {proxy.url} does not reach the endpoint.",
            remedy=f"Check {endpoint.named_by}, or the proxy in {proxy.variable}.",
            status=status,
        )
    return BadEndpoint(
        endpoint.url, f"The proxy {proxy.url} refuses the connection.", remedy=proxy.remedy, status=status
    )
