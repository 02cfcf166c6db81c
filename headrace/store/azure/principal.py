"""Who asks Azure's blob service: nobody, the holder of an account key or of a shared access signature, or an identity."""

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

from headrace.store.azure.request import BlobRequest, shared_key_authorization
from headrace.store.errors import NoCredentials, StoreError
from headrace.store.principal import Nobody
from headrace.store.principal import Principal as CommonPrincipal

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken

# Tokens are renewed when they hold for less than this; they are made for an hour or a day.
RENEWED_BEFORE_S = 300.0
# After a renewal that failed; every request would try again.
_RENEWAL_PAUSE_S = 20.0


class Principal(CommonPrincipal, Protocol):
    """Gives each request what says who asks."""

    def authorize(self, request: BlobRequest) -> None:
        """Add what says who asks to a request that is complete but for it. Raises StoreError where that is not to be had."""


class Anonymous(Nobody):
    """Asks without credentials."""

    def authorize(self, request: BlobRequest) -> None:
        """Nothing to add."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """One of the two keys of an account: it may do everything."""

    origin: str
    account: str
    key: bytes = field(repr=False)
    asked_for: bool = True
    is_anonymous: bool = False

    @property
    def shown(self) -> str:
        """See Principal.shown."""
        return f"the key of the account {self.account}"

    @property
    def remedy(self) -> str:
        """See Principal.remedy."""
        return f"Check {self.origin}: keys are rotated (`az storage account keys list`)."

    def authorize(self, request: BlobRequest) -> None:
        """See Principal.authorize."""
        request.headers["x-ms-date"] = formatdate(usegmt=True)
        request.headers["Authorization"] = shared_key_authorization(request, self.account, self.key)

    def renew(self, refused: str) -> bool:  # noqa: ARG002
        """There are no others."""
        return False


@dataclass(frozen=True, slots=True)
class SharedAccessSignature:
    """A signature that somebody made, good for some things and for some time."""

    origin: str
    value: str = field(repr=False)
    asked_for: bool = True
    is_anonymous: bool = False

    @property
    def expires(self) -> str:
        """Until when it holds, as it says itself; "" where a policy of the container does."""
        return parse_qs(self.value).get("se", [""])[0][:30]

    @property
    def permissions(self) -> str:
        """What it is good for, in letters (r: read, l: list, w: write, c: create), "" where it does not say."""
        return parse_qs(self.value).get("sp", [""])[0][:20]

    @property
    def shown(self) -> str:
        """See Principal.shown."""
        facts = [f"permissions {self.permissions}" if self.permissions else ""]
        facts.append(f"expires {self.expires}" if self.expires else "")
        known = ", ".join(fact for fact in facts if fact)
        return "a shared access signature" + (f" ({known})" if known else "")

    @property
    def remedy(self) -> str:
        """See Principal.remedy."""
        return f"Put a new one into {self.origin}, with the permissions r and l (c and w to push) on the container."

    def authorize(self, request: BlobRequest) -> None:
        """See Principal.authorize."""
        request.signature = self.value

    def renew(self, refused: str) -> bool:  # noqa: ARG002
        """There are no others."""
        return False


# Gives an access token: from what is kept, or, where True is given, a new one. Raises StoreError.
TokenSource = Callable[[bool], "AccessToken"]


class AzureIdentity:
    """Tokens from azure-identity, renewed some minutes before they expire. Safe for many threads."""

    is_anonymous = False
    asked_for = False

    def __init__(
        self,
        source: TokenSource,
        first: "AccessToken",
        *,
        kind: str,
        on_failed_renewal: Callable[[Exception], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args: kind: which credentials of azure-identity's chain, in words."""
        self._source, self._token, self._clock = source, first, clock
        self._on_failed_renewal = on_failed_renewal
        self.shown, self.origin = kind, "DefaultAzureCredential"
        self.remedy = "Sign in again (`az login`) to the tenant of the account, or check the identity that the environment names."
        self._lock = threading.Lock()
        self._no_renewal_before_s = 0.0

    def authorize(self, request: BlobRequest) -> None:
        """See Principal.authorize."""
        request.headers["Authorization"] = f"Bearer {self._current().token}"

    def _current(self) -> "AccessToken":
        with self._lock:
            now_s = self._clock()
            left_s = self._token.expires_on - now_s
            if left_s <= 0 or (left_s < RENEWED_BEFORE_S and now_s >= self._no_renewal_before_s):
                try:
                    self._token = self._source(False)
                except StoreError as error:
                    # Who gives tokens may be away for a moment: that does not end a load while the old one holds.
                    if left_s <= 0:
                        raise
                    self._no_renewal_before_s = now_s + _RENEWAL_PAUSE_S
                    self._on_failed_renewal(error)
            return self._token

    def renew(self, refused: str) -> bool:
        """See Principal.renew. Where another thread has had one made already, that one is kept."""
        with self._lock:
            if refused == f"Bearer {self._token.token}":
                self._token = self._source(True)
            return refused != f"Bearer {self._token.token}"


def shared_key(origin: str, account: str, text: str) -> SharedKey:
    """The key that is written as base64. Raises NoCredentials, without repeating it."""
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if not key:
        raise NoCredentials(
            origin,
            "It holds no account key, which is base64.",
            remedy="Copy the key whole, with the = at its end.",
        )
    if not account:
        raise NoCredentials(
            origin, "It is set, but no account is named.", remedy="Set AZURE_STORAGE_ACCOUNT_NAME."
        )
    return SharedKey(origin, account, key)


def shared_access_signature(origin: str, text: str) -> SharedAccessSignature:
    """A signature with or without its question mark. Raises NoCredentials, without repeating it."""
    value = text.removeprefix("?").strip("&")
    if "://" in value.partition("=")[0]:
        raise NoCredentials(
            origin,
            "It holds an address, not a shared access signature alone.",
            remedy="Keep what follows the question mark, sv=…&sig=….",
        )
    if not all("!" <= character <= "~" and character != "#" for character in value) or "sig" not in parse_qs(
        value
    ):
        raise NoCredentials(
            origin,
            "It holds no shared access signature.",
            remedy="Write the query of one, sv=…&sig=…, as `az storage container generate-sas` prints it.",
        )
    return SharedAccessSignature(origin, value)
