"""From an S3 store's error answer to the taxonomy, with a cause in words and a remedy."""

from dataclasses import dataclass

from headrace.store.answer import retry_after_s, shortened
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
from headrace.store.s3_listing import parse_xml, text_of
from headrace.store.s3_settings import S3Settings

BUCKET_NAME_REMEDY = "Most stores want 3 to 63 lower-case letters, digits, dots and dashes, with a letter or digit at both ends."


def error_of_response(uri: str, head: Head, body: bytes, settings: S3Settings, bucket: str) -> StoreError:
    """The typed error for an answer that is not a success."""
    if head.status == 400 and b"HTTPS" in body and settings.endpoint_url.startswith("http:"):
        return BadEndpoint(
            settings.endpoint_url,
            "The endpoint speaks TLS, and was asked in plain HTTP.",
            remedy="Write https:// in AWS_ENDPOINT_URL.",
            status=head.status,
        )
    said = _parse(body)
    request_id = said.request_id or shortened(head.headers.get("x-amz-request-id", ""))
    error = error_of_code(uri, head.status, said.code, said.message, request_id, settings, bucket)
    if isinstance(error, TransientError):
        error.retry_after_s = retry_after_s(head)
    region = shortened(head.headers.get("x-amz-bucket-region", "")) or said.region
    if isinstance(error, WrongRegion) and region:
        error.remedy = f"Set AWS_REGION={region}."
    return error


def error_of_code(
    uri: str, status: int, code: str, message: str, request_id: str, settings: S3Settings, bucket: str
) -> StoreError:
    """The typed error for a status and the store's own code; `message` is the store's own sentence."""
    credentials = settings.frozen_credentials()
    who = masked(credentials.access_key)
    secret = f"Check AWS_SECRET_ACCESS_KEY (it belongs to access key {who})."

    def made(kind: type[StoreError], cause: str, remedy: str) -> StoreError:
        return kind(uri, cause, remedy=remedy, status=status, code=code, request_id=request_id)

    if code == "NoSuchBucket":
        return made(
            NotFound,
            f"There is no bucket {bucket} at {settings.endpoint_url}.",
            "Check the bucket's name and AWS_ENDPOINT_URL, or make the bucket first.",
        )
    if code == "InvalidBucketName":
        return made(NotFound, f"The store takes {bucket} for no bucket's name.", BUCKET_NAME_REMEDY)
    if code == "SignatureDoesNotMatch":
        return made(BadSignature, "The store refuses the signature: the secret key is wrong.", secret)
    if code == "InvalidAccessKeyId":
        remedy = "Check AWS_ACCESS_KEY_ID."
        if credentials.token:
            remedy = "Check AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN, which must belong together."
        return made(BadSignature, f"The store does not know the access key {who}.", remedy)
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
    if status in (301, 302, 307, 308) or code in (
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
    said = f": {message}" if message else "."
    if status in (429, 503) or code in ("SlowDown", "RequestLimitExceeded"):
        return made(Throttled, "The store asks to slow down.", "")
    if status == 408 or (status >= 500 and status != 501) or code == "RequestTimeout":
        return made(TransientError, f"The store failed{said}", "")
    return made(Unsupported, f"The store refuses the request{said}", "")


def masked(access_key: str) -> str:
    """Enough of an access key id to recognise it."""
    return f"{access_key[:4]}…{access_key[-2:]}" if len(access_key) > 8 else "…"


@dataclass(frozen=True, slots=True)
class _ErrorBody:
    """What an error's XML says; "" where it says nothing."""

    code: str = ""
    message: str = ""
    request_id: str = ""
    region: str = ""


def _parse(body: bytes) -> _ErrorBody:
    root = parse_xml(body)
    if root is None:
        return _ErrorBody()
    return _ErrorBody(*(shortened(text_of(root, tag)) for tag in ("Code", "Message", "RequestId", "Region")))
