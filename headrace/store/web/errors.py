"""From a web server's error answer to the taxonomy, with a cause in words and a remedy."""

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
from headrace.store.http.answer import retry_after_s, shortened
from headrace.store.http.connection import Head
from headrace.store.s3.listing import parse_xml, text_of
from headrace.store.web.settings import TOKEN_VARIABLE


def error_of_web_response(uri: str, head: Head, body: bytes, *, token: bool, query: bool) -> StoreError:
    """The typed error for an answer that is not a success.

    Args:
        uri: the object, without its query.
        token, query: whether the request carried a bearer token, or a query (which may be a signature).
    """
    status = head.status
    request_id = shortened(head.headers.get("x-request-id") or head.headers.get("x-amz-request-id", ""))
    # Presigned addresses lead to object stores, whose error answers are XML. The message is not repeated.
    root = parse_xml(body) if query else None
    code = shortened(text_of(root, "Code")) if root is not None else ""
    said = text_of(root, "Message").lower() if root is not None else ""

    def made(kind: type[StoreError], cause: str, remedy: str = "") -> StoreError:
        return kind(uri, cause, remedy=remedy, status=status, code=code, request_id=request_id)

    if status == 400 and b"HTTPS" in body and uri.startswith("http:"):
        return made(BadEndpoint, "The server speaks TLS, and was asked in plain HTTP.", "Write https://.")
    if "expired" in said or code in ("ExpiredToken", "RequestExpired"):
        return made(ExpiredCredentials, "The signature in the address has expired.", "Make a new one.")
    if status == 401 and not token:
        return made(NoCredentials, "The server asks who you are.", f"Set {TOKEN_VARIABLE} to a bearer token.")
    if status == 401:
        return made(AccessDenied, f"The server does not take the token in {TOKEN_VARIABLE}.", "Renew it.")
    if status == 403:
        remedy = f"Set {TOKEN_VARIABLE} to a bearer token, or make the object public."
        if query:
            remedy = "Make a new presigned address: it may be expired, or be for another method than GET."
        elif token:
            remedy = f"Check what the owner of the token in {TOKEN_VARIABLE} may read."
        return made(AccessDenied, "The server does not allow it.", remedy)
    if status in (404, 410):
        return made(NotFound, "There is no such object.", "Check the address.")
    if status == 416:
        return made(Truncated, "The object is shorter than it was before.", "Upload it again.")
    if status in (429, 503):
        return _waiting(made(Throttled, "The server asks to slow down."), head)
    if status == 408 or (status >= 500 and status not in (501, 505)):
        return _waiting(made(TransientError, "The server failed."), head)
    return made(Unsupported, "The server refuses the request.")


def _waiting(error: StoreError, head: Head) -> StoreError:
    assert isinstance(error, TransientError)
    error.retry_after_s = retry_after_s(head)
    return error
