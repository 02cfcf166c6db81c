"""Finding Google credentials where Google's own tools look for them. What makes tokens of them is google-auth.

The order is that of Application Default Credentials: https://cloud.google.com/docs/authentication/application-default-credentials
The finding is done here, so that the metadata server is asked by our rules, in bounded time, and no request is made
for what a bucket does not need (the project of a workload identity).
"""

import json
import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headrace.store.errors import (
    BadSignature,
    ExpiredCredentials,
    NoCredentials,
    StoreError,
    TransientError,
)
from headrace.store.gcs.metadata_server import finds_metadata_server, is_metadata_server_ruled_out
from headrace.store.gcs.principal import Anonymous, GivenToken, GoogleCredentials, Principal
from headrace.store.http.answer import shortened
from headrace.store.http.trust import Trust

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.transport import Request

TOKEN_VARIABLES = ("HEADRACE_GCS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN")
ANONYMOUS_VARIABLES = ("HEADRACE_GCS_ANONYMOUS", "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS")
FILE_VARIABLES = ("RUNAI_STREAMER_GCS_CREDENTIAL_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
READ_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
WRITE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
INSTALL = "pip install 'headrace[gcs]'"
_SIGN_IN_REMEDY = "Name a credential file in GOOGLE_APPLICATION_CREDENTIALS, or sign in: `gcloud auth application-default login`."
_YES = ("1", "true", "yes", "on")
_AWS_TOKEN = "urn:ietf:params:aws:token-type:aws4_request"
_logger = logging.getLogger(__name__)


def find_principal(
    environ: Mapping[str, str], trust: Trust, *, emulator: str = "", scope: str = READ_SCOPE
) -> Principal:
    """Who asks, by the environment.

    Args:
        emulator: the variable that names an emulator, which no real credentials are sent to; "" for none.
        scope: what tokens are good for.

    Raises NoCredentials for a file that cannot be used, and where google-auth is missing that would be needed.
    """
    for name in ANONYMOUS_VARIABLES:
        if environ.get(name, "").strip().lower() in _YES:
            return Anonymous(name, True)
    for name in TOKEN_VARIABLES[:1] if emulator else TOKEN_VARIABLES:
        if token := environ.get(name, "").strip():
            return GivenToken(name, token)
    if emulator:
        return Anonymous(emulator, True)
    for name in FILE_VARIABLES:
        if path := environ.get(name, "").strip():
            return _of_file(os.path.expanduser(path), name, trust, scope, asked_for=True)  # noqa: PTH111
    path = _well_known_file(environ)
    if os.path.isfile(path):  # noqa: PTH113 (pathlib is not needed before the first byte)
        return _of_file(path, path, trust, scope, asked_for=False)
    return _of_machine(environ, path, trust, scope)


def _well_known_file(environ: Mapping[str, str]) -> str:
    folder = environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")  # noqa: PTH111
    return os.path.join(folder, "application_default_credentials.json")  # noqa: PTH118


def _of_machine(environ: Mapping[str, str], looked_at: str, trust: Trust, scope: str) -> Principal:
    """The machine's or pod's own service account, else nobody's."""
    looked = f"{', '.join(FILE_VARIABLES)} and {looked_at}"
    if is_metadata_server_ruled_out(environ):
        return Anonymous(f"looked at {looked}; the metadata server is not asked", False, _SIGN_IN_REMEDY)
    nowhere = f"looked at {looked} and for a metadata server"
    if not (_has_google_auth() and find_spec("requests")):  # which google-auth asks it with
        # Whether there is one does not matter to who cannot use it; a public bucket is read all the same.
        remedy = f"Install what signs in to Google: {INSTALL}"
        return Anonymous(f"google-auth is not installed; looked at {looked}", False, remedy)
    if not finds_metadata_server(environ):
        return Anonymous(nowhere, False, _SIGN_IN_REMEDY)
    from google.auth.compute_engine import Credentials

    credentials = Credentials(scopes=[scope])  # type: ignore[no-untyped-call]
    kind = "the service account of this machine"
    return GoogleCredentials(
        credentials, _request(trust), kind=kind, origin="the metadata server", asked_for=False
    )


def _of_file(path: str, origin: str, trust: Trust, scope: str, *, asked_for: bool) -> Principal:
    named = path if path == origin else f"{path} (named by {origin})"
    remedy = "Name a JSON file of a service account, a user or a workload identity."
    try:
        with open(path, "rb") as file:
            info = json.load(file)
        kind = info["type"]
    except OSError as error:
        raise NoCredentials(named, f"It cannot be read: {error.strerror}.", remedy=remedy) from None
    except (ValueError, KeyError, TypeError):
        raise NoCredentials(named, "It is no credential file of Google's.", remedy=remedy) from None
    if not _has_google_auth():
        raise NoCredentials(
            named, "google-auth, which makes tokens of it, is not installed.", remedy=f"Run: {INSTALL}"
        )
    from google.auth.exceptions import GoogleAuthError

    try:
        found = _credentials_of(info, kind, scope)
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Nothing of what a parser of keys says is repeated but for its kind: it may hold a piece of the key.
        cause = f"It is no usable credential file of the type {kind!r:.60} ({type(error).__name__})."
        raise NoCredentials(named, cause, remedy=remedy) from None
    if found is None:
        raise NoCredentials(
            named, f"It is a credential file of the type {kind!r:.60}, which is not known.", remedy=remedy
        )
    words, credentials = found
    return GoogleCredentials(credentials, _request(trust), kind=words, origin=origin, asked_for=asked_for)


def _credentials_of(info: dict[str, Any], kind: object, scope: str) -> "tuple[str, Credentials] | None":
    """What google-auth makes of a file, by its type, and what that is in words."""
    scopes = [scope]
    if kind == "service_account":
        from google.oauth2 import service_account

        return "the service account", service_account.Credentials.from_service_account_info(  # type: ignore[no-untyped-call]
            info, scopes=scopes
        )
    if kind == "authorized_user":
        from google.oauth2 import credentials

        # Without scopes: the refresh token has those that it was made with.
        return "the user", credentials.Credentials.from_authorized_user_info(info)  # type: ignore[no-untyped-call]
    if kind == "impersonated_service_account":
        from google.auth import impersonated_credentials

        impersonated = impersonated_credentials.Credentials
        return "the impersonated service account", impersonated.from_impersonated_service_account_info(  # type: ignore[no-untyped-call]
            info, scopes=scopes
        )
    if kind == "external_account_authorized_user":
        from google.auth import external_account_authorized_user

        return "the workforce user", external_account_authorized_user.Credentials.from_info(info)  # type: ignore[no-untyped-call]
    if kind == "external_account":
        return "the workload identity", _workload_identity(info, scopes)
    return None


def _workload_identity(info: dict[str, Any], scopes: list[str]) -> "Credentials":
    source = info.get("credential_source") or {}
    if info.get("subject_token_type") == _AWS_TOKEN:
        from google.auth import aws as kind
    elif "executable" in source:
        from google.auth import pluggable as kind  # type: ignore[no-redef]
    else:
        from google.auth import identity_pool as kind  # type: ignore[no-redef]
    made: Credentials = kind.Credentials.from_info(info, scopes=scopes)  # type: ignore[no-untyped-call]
    return made


def _has_google_auth() -> bool:
    return find_spec("google") is not None and find_spec("google.auth") is not None


def _request(trust: Trust) -> "Request":
    from headrace.store.gcs.token_request import TokenRequest

    return TokenRequest(trust)


def sign_in_error(error: Exception, principal: Principal) -> StoreError:
    """The typed error for what google-auth raised when a token was to be made."""
    from google.auth.exceptions import GoogleAuthError

    cause: BaseException | None = error
    while cause is not None:  # our own connection's error, which names host and setting
        if isinstance(cause, StoreError):
            return cause
        cause = cause.__cause__ or next((one for one in cause.args if isinstance(one, Exception)), None)
    said = shortened(str(error.args[0])).rstrip(". ") if error.args and isinstance(error.args[0], str) else ""
    who = f"{principal.shown} ({principal.origin})"
    if isinstance(error, GoogleAuthError) and error.retryable:
        return TransientError(who, f"No access token could be had: {said or 'Google failed'}.")
    if "invalid jwt" in said.lower() or "iat and exp" in said.lower():
        return BadSignature(
            who,
            "Google refuses the signature of these credentials: the key is not valid, or this machine's clock is off.",
            remedy="Set the clock (NTP), then check the key.",
        )
    if "invalid_grant" in said:
        return ExpiredCredentials(
            who, f"Google does not take these credentials any more: {said}.", remedy=principal.remedy
        )
    kind = said if said and isinstance(error, GoogleAuthError) else type(error).__name__
    return NoCredentials(
        who, f"No access token could be had with these credentials: {kind}.", remedy=principal.remedy
    )


def warn_of_failed_renewal(error: StoreError) -> None:
    """Say that a token could not be renewed while the old one still holds."""
    _logger.warning("%s The access token that there is still holds for some minutes.", error)
