"""From an S3 store's error answer to the taxonomy, with a cause in words and a remedy."""

import time
from dataclasses import dataclass

from headrace.source.web_address import web_address
from headrace.store.described import masked
from headrace.store.errors import BadEndpoint, StoreError, TransientError, WrongRegion
from headrace.store.http.answer import retry_after_s, shortened
from headrace.store.http.connection import Head
from headrace.store.http.redirects import is_redirect
from headrace.store.s3.credentials import Signer, no_credentials
from headrace.store.s3.error_table import (
    ANONYMOUS_DENIED,
    BY_CODE,
    BY_STATUS,
    NOT_A_STORE,
    REFUSED,
    UNKNOWN_KEY,
    UNKNOWN_KEY_WITH_TOKEN,
    Meaning,
)
from headrace.store.s3.listing import parse_xml, text_of
from headrace.store.s3.settings import S3Settings
from headrace.store.s3.told import PAYER_VARIABLE
from headrace.store.versions import http_date_s

_SKEW_S = 60
_SAYS_NOTHING = ("", "access denied", "forbidden")


def error_of_response(uri: str, head: Head, body: bytes, settings: S3Settings, bucket: str) -> StoreError:
    """The typed error for an answer that is not a success. A WrongRegion's `region` is where the store says to ask."""
    if head.status == 400 and b"HTTPS" in body and settings.endpoint_url.startswith("http:"):
        return BadEndpoint(
            settings.endpoint_url,
            "The endpoint speaks TLS, and was asked in plain HTTP.",
            remedy=f"Write https:// in {settings.endpoint_name}.",
            status=head.status,
        )
    said = _parse(body)
    location = head.headers.get("location", "")
    if is_redirect(head) and not said.code and "x-amz-bucket-region" not in head.headers:
        return BadEndpoint(
            settings.endpoint_url,
            f"The endpoint redirects to {_origin_in(location)}, which no S3 store does by itself.",
            remedy=f"Name the store's own address in {settings.endpoint_name}: a signed request is sent to no other.",
            status=head.status,
        )
    request_id = said.request_id or shortened(head.headers.get("x-amz-request-id", ""))
    region = shortened(head.headers.get("x-amz-bucket-region", "")) or said.region
    code = said.code
    # What has no body (an answer to HEAD), or denies what another region would allow, names the region all the same.
    if head.status in (400, 403) and region and region != settings.address_of(bucket).region:
        code = "AuthorizationHeaderMalformed" if code in ("", "AccessDenied") else code
    error = error_of_code(uri, head.status, code, said.message, request_id, settings, bucket)
    if isinstance(error, TransientError):
        error.retry_after_s = retry_after_s(head)
    if isinstance(error, WrongRegion) and region:
        error.region = region
        asked = settings.address_of(bucket).region
        error.remedy = (
            _set_region(settings.region_name, region)
            if region != asked
            else f"The store names {region} and does not answer there: check {settings.endpoint_name}."
        )
    if code in ("RequestTimeTooSkewed", "RequestExpired", "SignatureDoesNotMatch", "AccessDenied"):
        _tell_skew(error, head, certain=code.startswith("Request"))
    return error


def error_of_code(
    uri: str, status: int, code: str, message: str, request_id: str, settings: S3Settings, bucket: str
) -> StoreError:
    """The typed error for a status and the store's own code; `message` is the store's own sentence."""
    signer = settings.signer()
    meaning = _meaning(status, code, message, signer)
    if status in (401, 403) and signer is None:
        if not settings.anonymous:
            refused = ", and without any the bucket does not answer"
            return no_credentials(settings.endpoint_url, settings.environ, refused, status)
        meaning = ANONYMOUS_DENIED
    facts = {
        "bucket": bucket,
        "endpoint": settings.address_of(bucket).endpoint_url,
        "region": settings.address_of(bucket).region,
        "who": f"access key {masked(signer.access_key)}" if signer is not None else "nobody",
        "said": f": {message}" if message else ".",
        "keys": settings.key_names,
        "region_name": settings.region_name,
        "endpoint_name": settings.endpoint_name,
        "told": "" if message.strip(". ").lower() in _SAYS_NOTHING else f" The store says: {message}",
    }
    cause = meaning.cause.format_map(facts)
    remedy = meaning.remedy.format_map(facts)
    if status == 403 and "payer" in message.lower() and not settings.request_payer:
        remedy = f"Whoever reads this bucket pays for it: set {PAYER_VARIABLE}=requester."
    return meaning.kind(
        uri, cause[:1].upper() + cause[1:], remedy=remedy, status=status, code=code, request_id=request_id
    )


def _set_region(name: str, region: str) -> str:
    # Of variables, as a shell takes it.
    return f"Set {name}={region}." if name.startswith("AWS_") else f"Set {name} to {region}."


def _meaning(status: int, code: str, message: str, signer: Signer | None) -> Meaning:
    if code == "InvalidAccessKeyId":
        return UNKNOWN_KEY_WITH_TOKEN if signer is not None and signer.token else UNKNOWN_KEY
    if "kms:" in message and status == 403:
        return BY_CODE["KMS.DisabledException"]
    if status == 404 and not code:
        return NOT_A_STORE
    found = BY_CODE.get(code) or BY_STATUS.get(status)
    if found is not None:
        return found
    return BY_STATUS[500] if status >= 500 else REFUSED


def _tell_skew(error: StoreError, head: Head, *, certain: bool) -> None:
    """Say how far the clocks are apart, which the answer's own date tells."""
    stores = http_date_s(head.headers.get("date", ""))
    if stores is None:
        return
    ahead_s = round(time.time() - stores)
    if abs(ahead_s) < _SKEW_S:
        return
    apart = f"{abs(ahead_s) // 60} minutes {'ahead of' if ahead_s > 0 else 'behind'} the store's"
    if certain:
        error.remedy = f"This machine's clock is {apart}: set it (NTP)."
    else:
        error.remedy += f" This machine's clock is {apart}, which may be the reason too."


def _origin_in(location: str) -> str:
    """What may be shown of a redirect's target: no path and no query, which may be a secret."""
    address = web_address(location)
    return "another path" if isinstance(address, str) else address.origin


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
