"""From an S3 store's error answer to the taxonomy, with a cause in words and a remedy."""

import contextlib
from xml.etree import ElementTree

from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    ExpiredCredentials,
    NotFound,
    StoreError,
    Throttled,
    TransientError,
    Truncated,
    Unsupported,
    WrongRegion,
)
from headrace.store.http import Head
from headrace.store.s3_settings import S3Settings


def error_of_response(uri: str, head: Head, body: bytes, settings: S3Settings, bucket: str) -> StoreError:
    """The typed error for an answer that is not a success."""
    code, message, request_id = _parse(body)
    request_id = request_id or head.headers.get("x-amz-request-id", "")
    error = error_of_code(uri, head.status, code, message, request_id, settings, bucket)
    if isinstance(error, TransientError):
        with contextlib.suppress(ValueError):
            error.retry_after_s = (
                float(head.headers["retry-after"]) if "retry-after" in head.headers else None
            )
    region = head.headers.get("x-amz-bucket-region")
    if isinstance(error, WrongRegion) and region:
        error.remedy = f"Set AWS_REGION={region}."
    return error


def error_of_code(
    uri: str, status: int, code: str, message: str, request_id: str, settings: S3Settings, bucket: str
) -> StoreError:
    """The typed error for a status and the store's own code; `message` is the store's own sentence."""
    facts = {"status": status, "code": code, "request_id": request_id}
    who = masked(settings.frozen_credentials().access_key)
    secret = f"Check AWS_SECRET_ACCESS_KEY (it belongs to access key {who})."

    def made(kind: type[StoreError], cause: str, remedy: str) -> StoreError:
        return kind(uri, cause, remedy=remedy, status=status, code=code, request_id=request_id)

    if code == "NoSuchBucket":
        return made(
            NotFound,
            f"There is no bucket {bucket} at {settings.endpoint_url}.",
            "Check the bucket's name and AWS_ENDPOINT_URL, or make the bucket first.",
        )
    if code == "SignatureDoesNotMatch":
        return made(BadSignature, "The store refuses the signature: the secret key is wrong.", secret)
    if code == "InvalidAccessKeyId":
        return made(
            BadSignature, f"The store does not know the access key {who}.", "Check AWS_ACCESS_KEY_ID."
        )
    if code == "RequestTimeTooSkewed":
        return made(
            BadSignature, "This machine's clock and the store's differ too much.", "Set the clock (NTP)."
        )
    if code in ("ExpiredToken", "TokenRefreshRequired", "InvalidToken"):
        return made(
            ExpiredCredentials,
            "The session token is expired or not valid.",
            "Renew AWS_SESSION_TOKEN, or unset it.",
        )
    if status == 301 or code in (
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ):
        return made(
            WrongRegion,
            f"The bucket is not in the region {settings.region}.",
            "Set AWS_REGION to the bucket's region.",
        )
    if status == 403:
        return made(
            AccessDenied,
            f"The access key {who} may not do this.",
            "Allow it s3:ListBucket on the bucket and s3:GetObject on its objects (s3:PutObject to push).",
        )
    if status == 404 and not code:
        return made(
            BadEndpoint,
            f"{settings.endpoint_url} does not answer as an S3 store does.",
            "Check that AWS_ENDPOINT_URL is the store's S3 API (not its web console).",
        )
    if status == 404:
        return made(NotFound, "There is no such object.", "Check the key; `headrace push` uploads a model.")
    if status == 416:
        return made(Truncated, "The object is shorter than it was listed.", "Upload it again.")
    if status in (429, 503) or code in ("SlowDown", "RequestLimitExceeded"):
        return Throttled(uri, "The store asks to slow down.", **facts)  # type: ignore[arg-type]
    if status >= 500:
        return TransientError(uri, f"The store failed{': ' + message if message else '.'}", **facts)  # type: ignore[arg-type]
    return made(Unsupported, f"The store refuses the request{': ' + message if message else '.'}", "")


def masked(access_key: str) -> str:
    """Enough of an access key id to recognise it."""
    return f"{access_key[:4]}…{access_key[-2:]}" if len(access_key) > 8 else "…"


def _parse(body: bytes) -> tuple[str, str, str]:
    """Code, message and request id of an error body; empty where it is none."""
    with contextlib.suppress(ElementTree.ParseError):
        root = ElementTree.fromstring(body)
        return (
            root.findtext("{*}Code") or "",
            root.findtext("{*}Message") or "",
            root.findtext("{*}RequestId") or "",
        )
    return "", "", ""
