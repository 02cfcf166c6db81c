"""The table of error codes: each class of the taxonomy, its cause in words and its remedy."""

import datetime
from collections.abc import Mapping

import pytest
from botocore import auth

from headrace.demo.store import SeaweedStore
from headrace.source.uri import parse_source
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
    WrongRegion,
)
from headrace.store.http.connection import Head
from headrace.store.s3.errors import error_of_response
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.store import S3Store

SECRET = "secret-0123456789"
VARIABLES = {
    "AWS_ENDPOINT_URL": "http://store:9000",
    "AWS_ACCESS_KEY_ID": "AKID0123456789",
    "AWS_SECRET_ACCESS_KEY": SECRET,
}


def resolve(**variables: str) -> S3Settings:
    return resolve_s3_settings({**VARIABLES, **variables})


def error(
    status: int,
    code: str = "",
    message: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    settings: S3Settings | None = None,
) -> StoreError:
    body = (
        f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>REQ1</RequestId></Error>"
        if code
        else ""
    )
    return error_of_response(
        "s3://bucket/key", Head(status, dict(headers or {})), body.encode(), settings or resolve(), "bucket"
    )


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (404, "NoSuchBucket", NotFound, "no bucket bucket at http://store:9000"),
        (404, "NoSuchKey", NotFound, "no such object"),
        (404, "NoSuchAccessPoint", NotFound, "no access point"),
        (400, "InvalidBucketName", NotFound, "3 to 63 lower-case letters"),
        (403, "AccessDenied", AccessDenied, "The access key AKID…6789 may not do this. (HTTP 403"),
        (401, "Unauthorized", AccessDenied, "may not do this"),
        (403, "AllAccessDisabled", AccessDenied, "closed to everybody"),
        (403, "QuotaExceeded", AccessDenied, "The bucket is full"),
        (403, "SignatureDoesNotMatch", BadSignature, "belongs to access key AKID…6789"),
        (403, "InvalidAccessKeyId", BadSignature, "does not know the access key AKID…6789"),
        (403, "RequestTimeTooSkewed", BadSignature, "clock"),
        (400, "ExpiredToken", ExpiredCredentials, "Renew AWS_SESSION_TOKEN"),
        (400, "InvalidToken", ExpiredCredentials, "Renew AWS_SESSION_TOKEN"),
        (301, "PermanentRedirect", WrongRegion, "not in the region us-east-1"),
        (400, "AuthorizationHeaderMalformed", WrongRegion, "not in the region us-east-1"),
        (404, "", BadEndpoint, "does not answer as an S3 store does"),
        (416, "InvalidRange", Truncated, "shorter than it was listed"),
        (503, "SlowDown", Throttled, "slow down"),
        (503, "SlowDownRead", Throttled, "slow down"),
        (429, "TooManyRequests", Throttled, "slow down"),
        (500, "InternalError", TransientError, "The store failed"),
        (599, "", TransientError, "The store failed"),
        (400, "RequestTimeout", TransientError, "The store failed"),
        (501, "NotImplemented", Unsupported, "refuses the request"),
        (403, "InvalidObjectState", Unsupported, "Glacier"),
        (400, "KeyTooLongError", Unsupported, "1,024 bytes"),
        (400, "KMS.DisabledException", AccessDenied, "kms:Decrypt"),
        (400, "NeverHeardOf", Unsupported, "refuses the request"),
    ],
)
def test_every_code_has_its_class_and_its_words(
    status: int, code: str, kind: type[StoreError], words: str
) -> None:
    found = error(status, code)
    assert type(found) is kind
    assert words in str(found)
    assert (found.status, found.code) == (status, code)
    assert "{" not in str(found)


def test_what_the_store_says_more_is_told() -> None:
    said = "User: arn:aws:iam::1:user/x is not authorized to perform: s3:ListBucket"
    assert f"The store says: {said}" in str(error(403, "AccessDenied", said))
    assert "The store says" not in str(error(403, "AccessDenied", "Access Denied."))


def test_a_key_service_that_refuses_is_told_by_the_permission_that_is_missing() -> None:
    said = "User: x is not authorized to perform: kms:Decrypt on the resource"
    assert "Allow kms:Decrypt" in error(403, "AccessDenied", said).remedy


def test_a_store_that_says_the_requester_must_pay_is_told_by_the_setting() -> None:
    said = "Access Denied: this is a Requester Pays bucket and no payer was named"
    assert "HEADRACE_S3_REQUEST_PAYER=requester" in error(403, "AccessDenied", said).remedy
    payer = resolve(HEADRACE_S3_REQUEST_PAYER="requester")
    assert "s3:ListBucket" in error(403, "AccessDenied", said, settings=payer).remedy


def test_braces_in_what_a_store_says_are_text() -> None:
    assert "{who}" in str(error(400, "NeverHeardOf", "a {who} and a {0}"))


def test_a_session_token_is_named_where_the_key_is_not_known() -> None:
    settings = resolve(AWS_SESSION_TOKEN="hush-hush")
    found = error(403, "InvalidAccessKeyId", settings=settings)
    assert "AWS_SESSION_TOKEN, which must belong together" in found.remedy
    assert "hush" not in str(found)


@pytest.mark.parametrize("status", [401, 403])
def test_without_credentials_a_refusal_means_that_they_are_missing(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resolve(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    found = error(status, "AccessDenied", settings=settings)
    assert type(found) is NoCredentials
    assert "No AWS credentials were found" in str(found)


@pytest.mark.parametrize(("hours", "words"), [(-1, "60 minutes ahead of"), (2, "behind the store's")])
def test_how_far_the_clocks_are_apart_is_told(hours: int, words: str) -> None:
    date = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)).strftime(
        "%a, %d %b %Y %H:%M:%S GMT"
    )
    assert words in error(403, "RequestTimeTooSkewed", headers={"date": date}).remedy
    assert words in error(403, "SignatureDoesNotMatch", headers={"date": date}).remedy


def test_a_clock_that_is_an_hour_off_is_called_out_by_a_real_store(
    seaweed: SeaweedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(parse_source("s3://bucket/model"), resolve_s3_settings(seaweed.environment()))
    honest = auth.get_current_datetime
    monkeypatch.setattr(auth, "get_current_datetime", lambda: honest() - datetime.timedelta(hours=1))
    with pytest.raises(BadSignature, match="clock and the store's differ too much") as caught:
        store.list()
    assert caught.value.code == "RequestTimeTooSkewed"


def test_who_pays_is_told_to_the_store_and_signed() -> None:
    from tests.faults.opening import environment_of
    from tests.faults.server import fault_server

    with fault_server({"model/a": b"x"}) as server:
        settings = resolve_s3_settings({**environment_of(server), "HEADRACE_S3_REQUEST_PAYER": "requester"})
        S3Store(parse_source("s3://bucket/model"), settings).list()
        (asked,) = server.log
    assert asked.headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in asked.headers["authorization"]


def test_nobody_else_may_pay() -> None:
    with pytest.raises(BadEndpoint, match="HEADRACE_S3_REQUEST_PAYER") as caught:
        resolve(HEADRACE_S3_REQUEST_PAYER="owner")
    assert caught.value.remedy == "Write requester, or unset it."


def test_what_pushes_says_who_pays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.store.s3.client import make_s3_client
    from tests.faults.opening import environment_of
    from tests.faults.server import fault_server

    with fault_server({"model/a": b"x"}) as server:
        settings = resolve_s3_settings({**environment_of(server), "HEADRACE_S3_REQUEST_PAYER": "requester"})
        make_s3_client(settings, attempts=1).get_object(Bucket="bucket", Key="model/a")
        (asked,) = server.log
    assert asked.headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in asked.headers["authorization"]
