"""Who asks Google Cloud Storage: nobody, the bearer of a given token, or what google-auth makes tokens for."""

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from headrace.store.errors import NoCredentials
from headrace.store.principal import Nobody
from headrace.store.principal import Principal as CommonPrincipal

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.transport import Request


class Principal(CommonPrincipal, Protocol):
    """Gives each request its token."""

    def token(self) -> str:
        """An access token that is valid now; "" to ask without one.

        Raises:
            NoCredentials: none can be had with these credentials.
            StoreError: who gives tokens is not reached, or fails.
        """


class Anonymous(Nobody):
    """Asks without credentials."""

    def token(self) -> str:
        """None."""
        return ""


@dataclass(frozen=True, slots=True)
class GivenToken:
    """A token that somebody else keeps fresh."""

    origin: str
    value: str = field(repr=False)
    asked_for: bool = True
    is_anonymous: bool = False

    def __post_init__(self) -> None:
        """Raises NoCredentials for what no request can carry."""
        if not all("!" <= character <= "~" for character in self.value):
            raise NoCredentials(
                self.origin,
                "It holds a character that no request can carry.",
                remedy="Use the access token alone, as `gcloud auth print-access-token` prints it.",
            )

    @property
    def shown(self) -> str:
        """See Principal.shown."""
        return f"the access token in {self.origin}"

    @property
    def remedy(self) -> str:
        """See Principal.remedy."""
        return f"Put a new one into {self.origin} (`gcloud auth print-access-token`); one holds for an hour."

    def token(self) -> str:
        """It, whether it is still valid or not."""
        return self.value

    def renew(self, refused: str) -> bool:  # noqa: ARG002
        """There are no others."""
        return False


class GoogleCredentials:
    """Tokens from google-auth, made anew some minutes before they expire. Safe for many threads."""

    is_anonymous = False

    def __init__(
        self, credentials: "Credentials", request: "Request", *, kind: str, origin: str, asked_for: bool
    ) -> None:
        """Args: kind: of credentials, in words with an article."""
        self._credentials, self._request = credentials, request
        self._kind, self.origin, self.asked_for = kind, origin, asked_for
        self._lock = threading.Lock()

    @property
    def shown(self) -> str:
        """See Principal.shown. The name is known to everyone who may be asked to give it a role."""
        for attribute in ("service_account_email", "account"):
            name = getattr(self._credentials, attribute, "")
            if name and name != "default":
                return f"{self._kind} {name}"
        return self._kind

    @property
    def remedy(self) -> str:
        """See Principal.remedy."""
        if "user" in self._kind:
            return "Sign in again: `gcloud auth application-default login`."
        return f"Check that {self.origin} still holds a valid key or account, and this machine's clock."

    def token(self) -> str:
        """See Principal.token."""
        with self._lock:
            if not self._credentials.valid:
                self._refresh()
            return str(self._credentials.token)

    def renew(self, refused: str) -> bool:
        """See Principal.renew. Where another thread has had one made already, that one is kept."""
        with self._lock:
            if self._credentials.token == refused:
                self._refresh()
            return bool(self._credentials.token != refused)

    def _refresh(self) -> None:
        from google.auth.exceptions import GoogleAuthError

        from headrace.store.gcs.sign_in import sign_in_error, warn_of_failed_renewal

        try:
            self._credentials.refresh(self._request)  # type: ignore[no-untyped-call]
        except (GoogleAuthError, ValueError, TypeError, KeyError) as error:
            # Not only its own errors: a key that is none, and an answer that is none (a proxy's page), end in others.
            typed = sign_in_error(error, self)
            # They are renewed some minutes early: a token server that is away for a moment does not end a load.
            if not self._is_usable():
                raise typed from None
            warn_of_failed_renewal(typed)

    def _is_usable(self) -> bool:
        expiry = self._credentials.expiry
        return bool(
            self._credentials.token and expiry is not None and datetime.now(UTC).replace(tzinfo=None) < expiry
        )
