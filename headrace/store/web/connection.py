"""GET requests to a web server that follow redirects, over one kept connection for each origin."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.source.web_address import WebAddress
from headrace.store.errors import Unsupported
from headrace.store.http.connection import Head, HttpConnection
from headrace.store.http.redirects import MAX_REDIRECTS, is_redirect, next_address
from headrace.store.origins import Origins
from headrace.store.web.settings import WebSettings

# Query parameters that say who asks: a server refuses two answers to that question.
_SIGNATURES = ("x-amz-signature=", "x-goog-signature=", "signature=", "sig=")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response whose body is to be read from `http`.

    Attributes:
        address: where it came from, after redirects.
    """

    head: Head
    http: HttpConnection
    address: WebAddress


def carries_token(settings: WebSettings, home: str, address: WebAddress) -> bool:
    """Whether a request may and should carry the token: at home only, and not beside a signature."""
    if not settings.token or address.origin != home:
        return False
    parameters = address.query.lower().split("&")
    return not any(parameter.startswith(_SIGNATURES) for parameter in parameters)


class WebConnection:
    """Belongs to one thread; only `abort` may come from another."""

    def __init__(self, settings: WebSettings, home: str, stall_timeout_s: float) -> None:
        """Args: home: the origin that the token is for."""
        self._settings, self._home = settings, home
        self._origins = Origins(settings.trust, stall_timeout_s)

    def be_patient(self, stall_timeout_s: float) -> None:
        """Bear silences of this length from the next request on."""
        self._origins.be_patient(stall_timeout_s)

    def get(self, address: WebAddress, headers: Sequence[tuple[str, str]], uri: str) -> Answer:
        """Send a GET and read the head of the answer that redirects lead to.

        Args:
            uri: the object's name, for messages.

        Raises as HttpConnection.request, and Unsupported for redirects that lead nowhere.
        """
        for _ in range(MAX_REDIRECTS + 1):
            http = self._origins.to(address)
            own = [("Host", address.host)]
            if carries_token(self._settings, self._home, address):
                own.append(("Authorization", f"Bearer {self._settings.token}"))
            always = [("Accept-Encoding", "identity"), ("User-Agent", "headrace")]
            head = http.request(address.target, [*own, *headers, *always])
            if not is_redirect(head):
                return Answer(head, http, address)
            http.read_body()
            address = next_address(address, head, uri)
        raise Unsupported(
            uri,
            f"The server redirects more than {MAX_REDIRECTS} times.",
            remedy="Name the address of the objects themselves.",
        )

    def abort(self) -> None:
        """End whatever is under way in another thread; later requests fail."""
        self._origins.abort()

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        self._origins.close()
