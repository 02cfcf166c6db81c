"""From the error answers of Azure's blob service to the taxonomy, with a cause in words and a remedy.

Codes: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.store.azure.principal import Principal, SharedAccessSignature, SharedKey
from headrace.store.azure.settings import AzureSettings
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    TransientError,
    Truncated,
    Unsupported,
)
from headrace.store.http.answer import retry_after_s, shortened
from headrace.store.http.connection import Head
from headrace.store.s3.listing import parse_xml, text_of
from headrace.store.versions import http_date_s

_SKEW_S = 15 * 60  # what the service itself bears
_ROLE = "the role Storage Blob Data Reader on the container (Storage Blob Data Contributor to push)"
# Answers to who asks without credentials: of a private container a stranger is not told that it exists.
_STRANGERS = ("ResourceNotFound", "PublicAccessNotPermitted", "NoAuthenticationInformation")
_NO_CONTAINER = ("ContainerNotFound", "ContainerDisabled")
_NO_NAME = ("InvalidResourceName", "InvalidUri", "OutOfRangeInput")
# What a shared access signature leaves out, by the store's code.
_OUTSIDE_SIGNATURE = {
    "AuthorizationPermissionMismatch": "has not the permission that this needs",
    "AuthorizationProtocolMismatch": "is good for https only",
    "AuthorizationSourceIPMismatch": "is not good for this machine's address",
    "AuthorizationServiceMismatch": "is not good for the blob service",
    "AuthorizationResourceTypeMismatch": "is not good for containers and their objects",
}


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer that is not a success: what all its errors tell."""

    uri: str
    status: int
    code: str
    message: str
    request_id: str
    at_s: int | None

    @property
    def is_not_authentic(self) -> bool:
        """Whether the credentials are not taken, whatever they would permit; emulators have another code for it."""
        codes = ("AuthenticationFailed", "InvalidAuthenticationInfo")
        return self.code in codes or "failed to authenticate" in self.message

    def made(self, kind: type[StoreError], cause: str, remedy: str = "") -> StoreError:
        return kind(
            self.uri, cause, remedy=remedy, status=self.status, code=self.code, request_id=self.request_id
        )


def error_of_azure_response(
    uri: str, head: Head, body: bytes, settings: AzureSettings, *, now_s: float | None = None
) -> StoreError:
    """The typed error for an answer that is not a success.

    Args:
        now_s: this machine's time in seconds since 1970, if not the clock's.
    """
    answer = _answer_of(uri, head, body)
    code, status = answer.code, answer.status
    if code == "AccountRequiresHttps" or (
        status == 400 and b"HTTPS" in body and settings.endpoint.url.startswith("http:")
    ):
        remedy = f"Write https:// in {settings.endpoint.named_by}."
        return answer.made(BadEndpoint, "The endpoint wants TLS, and was asked in plain HTTP.", remedy)
    if status in (429, 503) or code == "ServerBusy":
        return _waiting(answer.made(Throttled, "The store asks to slow down."), head)
    if code == "Md5Mismatch":
        return answer.made(TransientError, "What arrived at the store is not what was sent.")
    if status == 408 or (status >= 500 and status != 501):
        return _waiting(answer.made(TransientError, f"The store failed{answer.message}"), head)
    is_refusal = status in (401, 403) or code in _STRANGERS or code == "KeyBasedAuthenticationNotPermitted"
    if is_refusal and settings.principal.is_anonymous:
        return _refused_anonymous(answer, settings)
    if is_refusal and status != 404:
        return _refused(answer, settings.principal, time.time() if now_s is None else now_s)
    return _unusable(answer, head, settings)


def _refused_anonymous(answer: _Answer, settings: AzureSettings) -> StoreError:
    principal = settings.principal
    if principal.asked_for:
        cause = f"The container does not answer anonymous requests, which {principal.origin} asks for."
        return answer.made(
            AccessDenied, cause, f"Unset {principal.origin}, or allow anonymous access to the container."
        )
    return answer.made(
        NoCredentials,
        f"No Azure credentials were found ({principal.origin}), and the container does not answer anonymous requests.",
        principal.remedy,
    )


def _refused(answer: _Answer, principal: Principal, now_s: float) -> StoreError:
    code = answer.code
    if answer.at_s is not None and abs(now_s - answer.at_s) > _SKEW_S:
        ahead = "ahead of" if now_s > answer.at_s else "behind"
        cause = f"This machine's clock is {abs(now_s - answer.at_s) / 60:,.0f} minutes {ahead} the store's."
        return answer.made(BadSignature, cause, "Set the clock (NTP).")
    if isinstance(principal, SharedAccessSignature):
        return _refused_signature(answer, principal)
    if code == "KeyBasedAuthenticationNotPermitted":
        remedy = f"Sign in with an identity that has {_ROLE}, and unset {principal.origin}."
        return answer.made(AccessDenied, "The account takes no keys.", remedy)
    if isinstance(principal, SharedKey) and answer.is_not_authentic:
        cause = f"The store refuses the signature: {principal.shown} is wrong."
        return answer.made(BadSignature, cause, principal.remedy)
    if answer.status == 401 or answer.is_not_authentic:
        cause = f"The store does not take the access token of {principal.shown}: it is expired, or for another tenant."
        return answer.made(ExpiredCredentials, cause, principal.remedy)
    if code == "AuthorizationFailure":
        cause = f"The account does not let {principal.shown} in from here{answer.message}"
        return answer.made(
            AccessDenied, cause, "Check the account's firewall and private endpoints (Networking)."
        )
    if code == "AccountIsDisabled":
        return answer.made(
            AccessDenied, "The account is disabled.", "Check the subscription that it belongs to."
        )
    cause = f"{_capital(principal.shown)} may not do this{answer.message}"
    return answer.made(AccessDenied, cause, f"Give it {_ROLE}; a new role counts after some minutes.")


def _refused_signature(answer: _Answer, principal: SharedAccessSignature) -> StoreError:
    end_s, now_s = _time_s(principal.expires), answer.at_s if answer.at_s is not None else time.time()
    if end_s is not None and end_s <= now_s:
        cause = f"The shared access signature in {principal.origin} expired at {principal.expires}."
        return answer.made(ExpiredCredentials, cause, principal.remedy)
    if (what := _OUTSIDE_SIGNATURE.get(answer.code)) is not None:
        allowed = (
            f" (it has: {principal.permissions})"
            if "Permission" in answer.code and principal.permissions
            else ""
        )
        return answer.made(
            AccessDenied,
            f"The shared access signature in {principal.origin} {what}{allowed}.",
            principal.remedy,
        )
    if answer.code == "KeyBasedAuthenticationNotPermitted":
        remedy = f"Use one that an identity delegates, or sign in with an identity that has {_ROLE}."
        return answer.made(
            AccessDenied, "The account takes no signatures that were made with its keys.", remedy
        )
    if answer.code == "AuthorizationFailure" and not answer.is_not_authentic:
        cause = f"The shared access signature in {principal.origin} does not cover this, or the account's firewall does not."
        return answer.made(AccessDenied, cause, principal.remedy)
    cause = (
        f"The store does not take the shared access signature in {principal.origin}: it is damaged, revoked, not valid "
        "yet, or made with a key that was rotated."
    )
    return answer.made(BadSignature, cause, principal.remedy)


def _unusable(answer: _Answer, head: Head, settings: AzureSettings) -> StoreError:
    """What was asked for is not there, or not in a way that it can be read."""
    code, status, endpoint = answer.code, answer.status, settings.endpoint
    if code in _NO_CONTAINER:
        return answer.made(
            NotFound,
            f"There is no such container at {endpoint.url}{endpoint.path}.",
            "Check the names of container and account, or make the container first.",
        )
    if code == "ContainerBeingDeleted":
        return answer.made(
            NotFound, "The container is being deleted.", "Wait half a minute, or use another one."
        )
    if code in _NO_NAME:
        cause = f"The store takes it for no name{answer.message}"
        return answer.made(NotFound, cause, "Check the container's name and the key.")
    if status == 404 and not code and "x-ms-request-id" not in head.headers:
        return answer.made(
            BadEndpoint,
            f"{endpoint.url} does not answer as Azure's blob service does.",
            f"Check {endpoint.named_by}: it must lead to the blob service of an account.",
        )
    if status == 404:
        return answer.made(
            NotFound, "There is no such object.", "Check the key; `headrace push` uploads a model."
        )
    if status == 416:
        return answer.made(Truncated, "The object is shorter than it was listed.", "Upload it again.")
    if code in ("BlobArchived", "BlobBeingRehydrated"):
        remedy = "Bring it back (`az storage blob set-tier --tier Hot`), which takes hours."
        return answer.made(
            Unsupported, "The object lies in the archive tier, where it cannot be read.", remedy
        )
    return answer.made(Unsupported, f"The store refuses the request{answer.message}")


def _answer_of(uri: str, head: Head, body: bytes) -> _Answer:
    root = parse_xml(body)
    code = head.headers.get("x-ms-error-code", "") or (text_of(root, "Code") if root is not None else "")
    # Its first line: the second one holds id and time. What follows in AuthenticationErrorDetail may hold a signature.
    message = text_of(root, "Message").partition("\n")[0] if root is not None else ""
    return _Answer(
        uri,
        head.status,
        shortened(code)[:80],
        f": {shortened(message)}" if message else ".",
        shortened(head.headers.get("x-ms-request-id", "")),
        http_date_s(head.headers.get("date", "")),
    )


def _waiting(error: StoreError, head: Head) -> StoreError:
    assert isinstance(error, TransientError)
    error.retry_after_s = retry_after_s(head)
    return error


def _time_s(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
