"""Where Google Cloud Storage is and who asks: one resolver for listing, metadata, weights and upload."""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.store.errors import BadEndpoint
from headrace.store.gcs.principal import Principal
from headrace.store.gcs.sign_in import READ_SCOPE, find_principal
from headrace.store.http.proxy import is_loopback
from headrace.store.http.trust import Trust, resolve_trust

ENDPOINT_VARIABLE = "HEADRACE_GCS_ENDPOINT"
EMULATOR_VARIABLES = ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
USER_PROJECT_VARIABLE = "HEADRACE_GCS_USER_PROJECT"
_UNIVERSE_VARIABLE = "GOOGLE_CLOUD_UNIVERSE_DOMAIN"
_PROJECT = re.compile(r"[A-Za-z0-9.:_-]{1,100}", re.ASCII)
_UNIVERSE = re.compile(r"[a-z0-9.-]+", re.ASCII)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """One resolved store.

    Attributes:
        endpoint_url: scheme, host and port without a path.
        endpoint_from: the variable that names it, or "default".
        principal: who asks.
        user_project: the project that pays for requests and traffic, "" for the bucket's own.
    """

    endpoint_url: str
    endpoint_from: str
    trust: Trust
    principal: Principal
    user_project: str = ""

    @property
    def named_by(self) -> str:
        """The variable in which a person corrects the endpoint."""
        return ENDPOINT_VARIABLE if self.endpoint_from == "default" else self.endpoint_from

    @property
    def is_emulator(self) -> bool:
        """Whether the endpoint was named as an emulator's."""
        return self.endpoint_from in EMULATOR_VARIABLES


def project_of(environ: Mapping[str, str] = os.environ) -> str:
    """The project that new buckets belong to, as Google's tools are told it; "" for none."""
    names = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")


def resolve_gcs_settings(environ: Mapping[str, str] = os.environ, *, scope: str = READ_SCOPE) -> GcsSettings:
    """Find endpoint, certificates and credentials; a token is made when first asked for.

    Args:
        scope: what tokens are good for.

    Raises:
        BadEndpoint: the endpoint is none; a certificate's file does not exist.
        NoCredentials: a credential file cannot be used.
    """
    trust = resolve_trust(environ)
    names = (ENDPOINT_VARIABLE, *EMULATOR_VARIABLES)
    origin = next((name for name in names if environ.get(name, "").strip()), "default")
    if origin == "default":
        endpoint = _default_endpoint(environ)
    else:
        endpoint = _checked(environ[origin].strip(), origin)
    principal = find_principal(
        environ, trust, emulator=origin if origin in EMULATOR_VARIABLES else "", scope=scope
    )
    if endpoint.startswith("http:") and not principal.is_anonymous and not is_loopback(_host(endpoint)):
        _logger.warning("%s: access tokens are sent unencrypted.", endpoint)
    project = environ.get(USER_PROJECT_VARIABLE, "").strip()
    if project and not _PROJECT.fullmatch(project):
        raise BadEndpoint(
            USER_PROJECT_VARIABLE,
            "It holds no project's id.",
            remedy="Write the id of a project, or unset it.",
        )
    return GcsSettings(endpoint, origin, trust, principal, project)


def _default_endpoint(environ: Mapping[str, str]) -> str:
    universe = environ.get(_UNIVERSE_VARIABLE, "").strip() or "googleapis.com"
    if not _UNIVERSE.fullmatch(universe):
        raise BadEndpoint(_UNIVERSE_VARIABLE, "It holds no domain.", remedy="Correct it, or unset it.")
    return f"https://storage.{universe}"


def _host(endpoint: str) -> str:
    return urlsplit(endpoint).hostname or ""


def _checked(endpoint: str, origin: str) -> str:
    """The endpoint without a slash at its end."""
    remedy = f"Set {origin} to http://HOST:PORT or https://HOST[:PORT]."
    if "@" in endpoint:
        raise BadEndpoint(origin, "The endpoint holds a user name or password.", remedy=remedy)
    if "://" not in endpoint and origin in EMULATOR_VARIABLES:  # as some of Google's libraries have it
        endpoint = f"http://{endpoint}"
    # Without path and query, which may hold a token.
    shown = re.match(r"([^/?#]*://)?[^/?#]*", endpoint).group()  # type: ignore[union-attr]
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise BadEndpoint(shown, f"The endpoint from {origin} is not a URL.", remedy=remedy) from None
    if parts.scheme not in ("http", "https"):
        raise BadEndpoint(
            shown, f"The endpoint from {origin} has no scheme (http:// or https://).", remedy=remedy
        )
    if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment or port == 0:
        raise BadEndpoint(
            shown,
            f"The endpoint from {origin} must be a scheme, a host and perhaps a port, without a path or a query.",
            remedy=remedy + " The bucket belongs in the gs:// URI.",
        )
    return f"{parts.scheme}://{parts.netloc}"
