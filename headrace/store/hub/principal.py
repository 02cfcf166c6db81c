"""Who asks the Hugging Face hub, found as its own tools do, whose library makes the tokens that have to be renewed.

Order: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.store.errors import NoCredentials

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_WITHOUT_VARIABLE = "HF_HUB_DISABLE_IMPLICIT_TOKEN"
_EXCHANGE_VARIABLE = "HF_OIDC_RESOURCE"


class HubPrincipal(Protocol):
    """Gives each request to the hub its token."""

    @property
    def origin(self) -> str:
        """The variable or file that it comes from; for nobody, where was looked."""

    @property
    def shown(self) -> str:
        """Who it is, in words, without a secret."""

    @property
    def is_anonymous(self) -> bool:
        """Whether requests say nothing of who asks."""

    def token(self) -> str:
        """A token that is valid now, "" to ask without one. Raises NoCredentials where none can be made."""


@dataclass(frozen=True, slots=True)
class NobodyOnTheHub:
    """Asks without a token."""

    origin: str
    shown: str = "anonymous"
    is_anonymous: bool = True

    def token(self) -> str:
        """See HubPrincipal."""
        return ""


@dataclass(frozen=True, slots=True)
class GivenHubToken:
    """A token as it was given."""

    origin: str
    value: str = field(repr=False)
    shown: str = "a token"
    is_anonymous: bool = False

    def token(self) -> str:
        """See HubPrincipal."""
        return self.value


@dataclass(frozen=True, slots=True)
class RenewedHubToken:
    """What huggingface_hub signs in with: an exchanged token, or a login's that it refreshes. It keeps them itself."""

    origin: str
    shown: str = "a token that is renewed"
    is_anonymous: bool = False

    def token(self) -> str:
        """See HubPrincipal."""
        from huggingface_hub import get_token

        try:
            found = get_token()
        except Exception as error:  # of the library's own and of whatever it asks
            raise NoCredentials(
                self.origin,
                f"No token can be had for the hub: {error!s:.300}",
                remedy="Set HF_TOKEN, or unset what is named here.",
            ) from None
        return checked_token(found or "", self.origin)


def find_hub_principal(environ: Mapping[str, str], home: Path) -> HubPrincipal:
    """Who asks.

    Args:
        home: the folder that HF_HOME names.

    Raises NoCredentials for a token that no request can carry or a file that cannot be read.
    """
    if is_true(environ.get(_WITHOUT_VARIABLE)):
        return NobodyOnTheHub(_WITHOUT_VARIABLE)
    if environ.get(_EXCHANGE_VARIABLE):
        return RenewedHubToken(_EXCHANGE_VARIABLE)
    for variable in TOKEN_VARIABLES:
        if value := environ.get(variable, "").strip():
            return GivenHubToken(variable, checked_token(value, variable))
    path = Path(environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
    if value := _content(path).strip():
        # A login in the browser stores what its token is renewed with.
        if "refresh_token" in _content(path.with_name("stored_tokens")):
            return RenewedHubToken(str(path))
        return GivenHubToken(str(path), checked_token(value, str(path)))
    if "google.colab" in sys.modules:
        return RenewedHubToken("the notebook's secrets")
    return NobodyOnTheHub(f"no {TOKEN_VARIABLES[0]}, no {path}")


def checked_token(token: str, origin: str) -> str:
    """The token, if a request can carry it. Raises NoCredentials, without repeating it."""
    if not all("!" <= character <= "~" for character in token):
        raise NoCredentials(
            origin,
            "It holds a character that no request can carry.",
            remedy="Use the token alone, as https://huggingface.co/settings/tokens shows it.",
        )
    return token


def is_true(value: str | None) -> bool:
    """Whether the hub's tools take a variable's value for yes."""
    return (value or "").strip().upper() in ("1", "ON", "YES", "TRUE")


def _content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise NoCredentials(
            str(path),
            f"The token's file cannot be read: {error.strerror}.",
            remedy="Set HF_TOKEN, or correct the file's permissions.",
        ) from None
