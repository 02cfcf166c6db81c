"""Where the Hugging Face hub is and who asks: one resolver for listing, metadata and weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.source.web_address import WebAddress, web_address
from headrace.store.errors import BadEndpoint
from headrace.store.http.trust import Trust, resolve_trust
from headrace.store.hub.principal import HubPrincipal, find_hub_principal, is_true

ENDPOINT_VARIABLE = "HF_ENDPOINT"
DEFAULT_ENDPOINT = "https://huggingface.co"
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True, slots=True)
class HubSettings:
    """One resolved hub, or a mirror of it.

    Attributes:
        endpoint: scheme, host and the path before `/api`, which a mirror may have; the path has no slash at its end.
        endpoint_from: the variable that names it, or "default".
    """

    endpoint: WebAddress
    endpoint_from: str
    principal: HubPrincipal
    trust: Trust

    @property
    def url(self) -> str:
        """The endpoint for a person."""
        return self.endpoint.shown.rstrip("/")

    @property
    def named_by(self) -> str:
        """What a person corrects where the hub is not reached."""
        return self.endpoint_from if self.endpoint_from != "default" else ENDPOINT_VARIABLE

    def address(self, path: str, query: str = "") -> WebAddress:
        """The address of a percent-encoded path below the endpoint."""
        endpoint = self.endpoint
        return WebAddress(endpoint.scheme, endpoint.host, endpoint.path + path, query)


def resolve_hub_settings(environ: Mapping[str, str] = os.environ) -> HubSettings:
    """The settings that the environment asks for.

    Raises:
        BadEndpoint: HF_ENDPOINT is no address, or a certificate's file does not exist.
        NoCredentials: a token that no request can carry.
    """
    text = environ.get(ENDPOINT_VARIABLE, "").strip()
    found = web_address((text or DEFAULT_ENDPOINT).rstrip("/"))
    if isinstance(found, str) or found.query:
        why = found if isinstance(found, str) else "it holds a query"
        raise BadEndpoint(
            ENDPOINT_VARIABLE,
            f"It is no address of a hub: {why}.",
            remedy="Write https://HOST, or unset it for https://huggingface.co.",
        )
    endpoint = WebAddress(found.scheme, found.host, found.path.rstrip("/"))
    principal = find_hub_principal(environ, hub_home(environ))
    return HubSettings(endpoint, ENDPOINT_VARIABLE if text else "default", principal, resolve_trust(environ))


def offline_variable(environ: Mapping[str, str] = os.environ) -> str:
    """The variable that forbids asking the hub, "" where none does."""
    return next((name for name in OFFLINE_VARIABLES if is_true(environ.get(name))), "")


def hub_home(environ: Mapping[str, str]) -> Path:
    """Where the hub's own tools keep tokens and cache."""
    above = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(environ.get("HF_HOME") or f"{above}/huggingface")


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's own tools keep the models that they have downloaded."""
    given = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(given) if given else hub_home(environ) / "hub"


def _expanded(path: str) -> Path:
    try:
        return Path(os.path.expandvars(path)).expanduser()
    except RuntimeError:  # a user without a home
        return Path(os.devnull) / "huggingface"
