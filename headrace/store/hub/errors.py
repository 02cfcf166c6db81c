"""From an error answer of the hub, or of where it keeps its files, to the taxonomy.

Codes: the header X-Error-Code, as huggingface_hub reads it in utils/_http.py.
"""

import re
from dataclasses import dataclass

from headrace.source.uri import ModelSource
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
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
from headrace.store.hub.settings import HubSettings

# `"resolvers";r=0;t=55`: nothing is left of what this address may ask for, for so many seconds more.
_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*([0-9]{1,5})(?![0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubRefusal:
    """What is known of an answer that is not a success.

    Attributes:
        uri: what was asked for.
        at_hub: whether it is the hub's own, not of where its files are kept.
    """

    uri: str
    head: Head
    at_hub: bool

    @property
    def code(self) -> str:
        """The hub's own code."""
        return shortened(self.head.headers.get("x-error-code", ""))

    def made(self, kind: type[StoreError], cause: str, remedy: str = "") -> StoreError:
        """The typed error."""
        headers = self.head.headers
        request_id = headers.get("x-request-id") or headers.get("x-amz-cf-id", "")
        return kind(
            self.uri,
            cause,
            remedy=remedy,
            status=self.head.status,
            code=self.code,
            request_id=shortened(request_id),
        )


def error_of_hub_answer(refusal: HubRefusal, source: ModelSource, settings: HubSettings) -> StoreError:
    """The typed error, with a cause in words and a remedy."""
    status = refusal.head.status
    if status in (401, 403, 404, 410) and not refusal.at_hub:
        kind = NotFound if status in (404, 410) else AccessDenied
        return refusal.made(
            kind,
            "Where the hub keeps the file, the address that the hub has just given is refused.",
            "Try again; if it is always so, the clock of this machine or a proxy on the way may be wrong.",
        )
    if status in (401, 403):
        return _of_refused(refusal, source, settings)
    if status in (404, 410):
        return _of_absent(refusal, source, settings)
    if status == 416:
        return refusal.made(Truncated, "The file is shorter than the hub's listing says.", "Try again.")
    if status == 429 or status == 503:
        return _throttled(refusal, settings)
    if status == 408 or (status >= 500 and status not in (501, 505)):
        return _waiting(refusal.made(TransientError, "The server failed."), refusal.head)
    return refusal.made(Unsupported, "The server refuses the request.", f"Check {settings.named_by}.")


def _of_refused(refusal: HubRefusal, source: ModelSource, settings: HubSettings) -> StoreError:
    principal = settings.principal
    said = shortened(refusal.head.headers.get("x-error-message", ""))
    if refusal.code == "GatedRepo":
        page = f"{settings.url}/{source.bucket}"
        if principal.is_anonymous:
            return refusal.made(
                NoCredentials,
                "The model is gated, and nobody is signed in to the hub.",
                f"Accept its licence at {page} and set HF_TOKEN to a token of that account.",
            )
        return refusal.made(
            AccessDenied,
            f"The model is gated, and whose token is in {principal.origin} may not read it.",
            f"Accept its licence at {page} (its owner may have to agree) and, if the token is fine-grained, let it read "
            "public gated repositories.",
        )
    if said == "Access to this resource is disabled.":
        return refusal.made(AccessDenied, "The hub has disabled this model.", "Use another one.")
    if refusal.head.status == 401 and not principal.is_anonymous and refusal.code != "RepoNotFound":
        return refusal.made(
            AccessDenied,
            f"The hub does not take the token in {principal.origin}.",
            "Make a new one at https://huggingface.co/settings/tokens, or unset it for a public model.",
        )
    if refusal.head.status == 401:  # so it answers for what is not there, too
        return _of_absent(refusal, source, settings)
    return refusal.made(
        AccessDenied,
        f"The hub does not allow it{f': {said}' if said else '.'}",
        f"Check what the token in {principal.origin} may read."
        if not principal.is_anonymous
        else "Set HF_TOKEN to a token that may read it.",
    )


def _of_absent(refusal: HubRefusal, source: ModelSource, settings: HubSettings) -> StoreError:
    code, principal = refusal.code, settings.principal
    if code == "RevisionNotFound":
        return refusal.made(
            NotFound,
            f"The model has no revision {source.revision or 'main'}.",
            f"Name a branch, a tag or a commit of {settings.url}/{source.bucket}/commits.",
        )
    if code == "EntryNotFound":
        return refusal.made(
            NotFound, "The model has no such file or folder at this revision.", "Check the name."
        )
    if code == "RepoNotFound" or refusal.head.status == 401:
        here = "" if source.text.lower().startswith("hf:") else f"There is no folder {source.text} here, and "
        cause = f"{here}there is no such model on the hub at {settings.url}, or it is private."
        remedy = "Check the name"
        remedy += "; for a folder write ./" + source.text if here else ""
        if principal.is_anonymous:
            remedy += "; for a private model set HF_TOKEN"
        else:
            remedy += f"; a private one must be readable with the token in {principal.origin}"
        return refusal.made(NotFound, cause[0].upper() + cause[1:], remedy + ".")
    return refusal.made(
        BadEndpoint,
        f"{settings.url} has nothing there, and does not say so as the hub does.",
        f"Check {settings.named_by}.",
    )


def _throttled(refusal: HubRefusal, settings: HubSettings) -> StoreError:
    remedy = ""
    if refusal.at_hub and settings.principal.is_anonymous:
        remedy = "It allows more to who is signed in: set HF_TOKEN."
    error = _waiting(refusal.made(Throttled, "The hub asks to slow down.", remedy), refusal.head)
    assert isinstance(error, TransientError)
    limit = _LIMIT.search(refusal.head.headers.get("ratelimit", ""))
    if error.retry_after_s is None and limit is not None:
        error.retry_after_s = float(limit.group(1))
    return error


def _waiting(error: StoreError, head: Head) -> StoreError:
    assert isinstance(error, TransientError)
    error.retry_after_s = retry_after_s(head)
    return error
