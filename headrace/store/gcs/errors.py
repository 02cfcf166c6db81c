"""From Google Cloud Storage's error answers to the taxonomy, with a cause in words and a remedy.

Reasons: https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

import re
from dataclasses import dataclass

import msgspec

from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    TransientError,
    Truncated,
    Unsupported,
)
from headrace.store.gcs.settings import USER_PROJECT_VARIABLE, GcsSettings
from headrace.store.http.answer import retry_after_s, shortened
from headrace.store.http.connection import Head

_THROTTLING = ("rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "resourceExhausted")
_ROLES = "roles/storage.objectViewer on the bucket (roles/storage.objectUser to push)"
# Access tokens and signed headers that a server might repeat.
_SECRET = re.compile(r"ya29\.[\w.-]+|(?i:bearer) +[\w.~+/=-]+")


class _Detail(msgspec.Struct):
    reason: str = ""


class _Error(msgspec.Struct):
    message: str = ""
    errors: list[_Detail] = msgspec.field(default_factory=list)
    status: str = ""


class _Body(msgspec.Struct):
    error: _Error


@dataclass(frozen=True, slots=True)
class _Said:
    reason: str = ""
    message: str = ""


def error_of_gcs_response(
    uri: str, head: Head, body: bytes, settings: GcsSettings, *, names_object: bool
) -> StoreError:
    """The typed error for an answer that is not a success.

    Args:
        names_object: whether one object was asked for, not a bucket.
    """
    said, status = _parse(body), head.status
    request_id = shortened(head.headers.get("x-guploader-uploadid", ""))
    principal = settings.principal
    message = f": {said.message}" if said.message else "."

    def made(kind: type[StoreError], cause: str, remedy: str = "") -> StoreError:
        return kind(uri, cause, remedy=remedy, status=status, code=said.reason, request_id=request_id)

    if status == 400 and b"HTTPS" in body and settings.endpoint_url.startswith("http:"):
        remedy = f"Write https:// in {settings.named_by}."
        return made(BadEndpoint, "The endpoint speaks TLS, and was asked in plain HTTP.", remedy)
    if status == 429 or said.reason in _THROTTLING or (status == 503 and said.reason != "backendError"):
        return _waiting(made(Throttled, "The store asks to slow down."), head)
    if said.reason in ("userProjectMissing", "required") and "project" in said.message.lower():
        remedy = f"Set {USER_PROJECT_VARIABLE} to the project that pays for requests and traffic."
        return made(AccessDenied, "The bucket lets the requester pay.", remedy)
    if status in (401, 403) and principal.is_anonymous:
        return _refused_anonymous(uri, head, said, request_id, settings)
    if status == 401:
        return made(
            ExpiredCredentials,
            f"The store does not take the access token of {principal.shown}: it is expired, revoked or no token.",
            principal.remedy,
        )
    if status == 403:
        return made(
            AccessDenied, f"{_capital(principal.shown)} may not do this{message}", _denied_remedy(said)
        )
    if status == 404 and not _is_answer_of_gcs(head, said):
        remedy = f"Check that {settings.named_by} is the address of a Cloud Storage API."
        return made(BadEndpoint, f"{settings.endpoint_url} does not answer as Cloud Storage does.", remedy)
    if status == 404 and names_object:
        return made(NotFound, "There is no such object.", "Check the key; `headrace push` uploads a model.")
    if status == 404:
        return made(
            NotFound,
            f"There is no such bucket at {settings.endpoint_url}.",
            "Check the bucket's name, or make the bucket first.",
        )
    if status == 416:
        return made(Truncated, "The object is shorter than it was listed.", "Upload it again.")
    if status == 408 or (status >= 500 and status != 501):
        return _waiting(made(TransientError, f"The store failed{message}"), head)
    if status == 400 and "bucket name" in said.message.lower():
        return made(NotFound, f"The store takes it for no bucket's name{message}", "Check the bucket's name.")
    return made(Unsupported, f"The store refuses the request{message}")


def _refused_anonymous(
    uri: str, head: Head, said: _Said, request_id: str, settings: GcsSettings
) -> StoreError:
    principal = settings.principal
    if principal.asked_for:
        return AccessDenied(
            uri,
            f"The bucket does not answer anonymous requests, which {principal.origin} asks for.",
            remedy=f"Unset {principal.origin}, or give allUsers roles/storage.objectViewer.",
            status=head.status,
            code=said.reason,
            request_id=request_id,
        )
    return NoCredentials(
        uri,
        f"No Google credentials were found ({principal.origin}), and the bucket does not answer anonymous requests.",
        remedy=principal.remedy,
        status=head.status,
        code=said.reason,
        request_id=request_id,
    )


def _denied_remedy(said: _Said) -> str:
    text = f"{said.reason} {said.message}".lower()
    if "scope" in text or said.reason == "insufficientPermissions":
        return "Give the machine (or the token) the scope devstorage.read_only, or cloud-platform."
    if said.reason == "accessNotConfigured":
        return "Switch the Cloud Storage API on in the project of these credentials."
    if "organization's policy" in text or said.reason == "vpcServiceControls":
        return "The bucket lies inside a VPC service perimeter: run inside it, or have an access level made."
    if "serviceusage.services.use" in text:
        return (
            f"Check the project in {USER_PROJECT_VARIABLE}: who asks needs serviceusage.services.use on it."
        )
    return f"Give it {_ROLES}."


def _is_answer_of_gcs(head: Head, said: _Said) -> bool:
    """A missing object's content is answered for in plain text, anything else in JSON; other servers send pages."""
    kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    return bool(said.reason) or kind == "text/plain" or "x-guploader-uploadid" in head.headers


def _waiting(error: StoreError, head: Head) -> StoreError:
    assert isinstance(error, TransientError)
    error.retry_after_s = retry_after_s(head)
    return error


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _parse(body: bytes) -> _Said:
    try:
        error = msgspec.json.decode(body, type=_Body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Said()
    reason = next((detail.reason for detail in error.errors if detail.reason), error.status)
    return _Said(_printable(reason)[:80], _printable(_SECRET.sub("…", error.message)))


def _printable(text: str) -> str:
    """One line that a terminal takes for nothing but text."""
    return "".join(character if character.isprintable() else "?" for character in shortened(text))
