"""GET requests to the hub and on to where it keeps its large files, which must not see the token."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.source.web_address import WebAddress
from headrace.store.errors import Unsupported
from headrace.store.http.connection import Head, HttpConnection
from headrace.store.http.redirects import MAX_REDIRECTS, is_redirect, next_address
from headrace.store.hub.settings import HubSettings
from headrace.store.origins import Origins

_ELSEWHERE = "the address that the hub leads to"


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """A response whose body is to be read from `http`.

    Attributes:
        address: where it came from, after redirects.
        from_hub: the heads that the hub itself gave on the way, the last one too if it is the hub's.
    """

    head: Head
    http: HttpConnection
    address: WebAddress
    from_hub: tuple[Head, ...]


class HubConnection:
    """Belongs to one thread; only `abort` may come from another."""

    def __init__(self, settings: HubSettings, stall_timeout_s: float) -> None:
        self.settings = settings
        self._origins = Origins(settings.trust, stall_timeout_s)

    def be_patient(self, stall_timeout_s: float) -> None:
        """Bear silences of this length from the next request on."""
        self._origins.be_patient(stall_timeout_s)

    def is_hub(self, address: WebAddress) -> bool:
        """Whether an address is the hub's own: only there the token may be shown."""
        return address.origin == self.settings.endpoint.origin

    def get(self, address: WebAddress, headers: Mapping[str, str], uri: str) -> HubAnswer:
        """Send a GET and read the head of the answer that redirects lead to.

        Args:
            uri: what is asked for, for messages.

        Raises as HttpConnection.request, NoCredentials where no token can be had, and Unsupported for redirects that
        lead nowhere.
        """
        from_hub: list[Head] = []
        for _ in range(MAX_REDIRECTS + 1):
            own = {"Host": address.host, **headers, "Accept-Encoding": "identity", "User-Agent": "headrace"}
            at_hub = self.is_hub(address)
            if at_hub and (token := self.settings.principal.token()):
                own["Authorization"] = f"Bearer {token}"
            http = self._origins.to(address, self.settings.named_by if at_hub else _ELSEWHERE)
            head = http.request(address.target, list(own.items()))
            if at_hub:
                from_hub.append(head)
            if not is_redirect(head):
                return HubAnswer(head, http, address, tuple(from_hub))
            http.read_body()
            address = next_address(address, head, uri)
        raise Unsupported(
            uri,
            f"The hub redirects more than {MAX_REDIRECTS} times.",
            remedy=f"Check {self.settings.named_by}.",
        )

    def abort(self) -> None:
        """End whatever is under way in another thread; later requests fail."""
        self._origins.abort()

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        self._origins.close()
