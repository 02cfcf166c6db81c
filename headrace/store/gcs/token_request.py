"""google-auth's requests for tokens over our own connections: the same proxies, certificates and time limits as reads.

Imported only where google-auth is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from google.auth.exceptions import TransportError
from google.auth.transport import Request

from headrace.store.errors import StoreError
from headrace.store.http.connect import Endpoint, endpoint_of
from headrace.store.http.connection import Head, HttpConnection
from headrace.store.http.trust import Trust

_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenResponse:
    """What google-auth reads of an answer; headers have lower-case names."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class TokenRequest(Request):
    """Makes one request on a connection of its own: they are rare, and may come from any thread."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> TokenResponse:
        """See google.auth.transport.Request. Raises TransportError, caused by a StoreError."""
        data = body.encode() if isinstance(body, str) else body
        try:
            head, answer = self._ask(url, method, data, headers or {}, timeout or _TIMEOUT_S)
        except StoreError as error:
            raise TransportError(error) from error  # type: ignore[no-untyped-call]
        return TokenResponse(head.status, head.headers, answer)

    def _ask(
        self, url: str, method: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[Head, bytes]:
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        own = [(name, str(value)) for name, value in headers.items() if name.lower() != "host"]
        http = HttpConnection(self._endpoint(url), stall_timeout_s=timeout_s)
        try:
            head = http.request(
                target,
                [("Host", parts.netloc), *own, ("Accept-Encoding", "identity")],
                method=method,
                body=body,
            )
            return head, http.read_body(_MAX_ANSWER_BYTES)
        finally:
            http.close()

    def _endpoint(self, url: str) -> Endpoint:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StoreError("the credentials", "They name an address that is none.")
        named_by = "the credential file"
        if (
            parts.scheme == "http"
        ):  # a metadata server, of this machine or its cloud: no proxy reaches it for us
            return Endpoint("http", parts.hostname, parts.port or 80, self._trust, None, named_by)
        return endpoint_of(f"https://{parts.netloc}", self._trust, named_by=named_by)
