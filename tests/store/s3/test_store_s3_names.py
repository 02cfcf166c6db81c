"""What an error tells a person to correct: the variable, the profile's entry or the argument that they gave it in."""

from pathlib import Path

import pytest

from headrace import S3Credentials, list_safetensors
from headrace.source.uri import parse_source
from headrace.store.errors import StoreError
from headrace.store.http.connection import Head
from headrace.store.s3.errors import error_of_response
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.stream.library.credentials import environment_with, names_given

ELSEWHERE = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
GIVEN = S3Credentials("AKID0123456789", "secret", None, "eu-west-1", "http://store:9000")


def remedy(settings: S3Settings, status: int, code: str, **headers: str) -> str:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    return error_of_response("s3://bucket/key", Head(status, headers), body, settings, "bucket").remedy


def handed_over() -> S3Settings:
    return resolve_s3_settings(environment_with(GIVEN, ELSEWHERE), names_given(GIVEN))


@pytest.mark.parametrize(
    ("status", "code", "named"),
    [
        (403, "SignatureDoesNotMatch", "secret_access_key of s3_credentials"),
        (403, "InvalidAccessKeyId", "access_key_id of s3_credentials"),
        (400, "ExpiredToken", "session_token of s3_credentials"),
        (301, "PermanentRedirect", "region_name of s3_credentials"),
        (404, "NoSuchBucket", "endpoint of s3_credentials"),
        (404, "", "endpoint of s3_credentials"),
    ],
)
def test_what_a_caller_handed_over_is_called_by_its_field(status: int, code: str, named: str) -> None:
    said = remedy(handed_over(), status, code)
    assert named in said
    assert "AWS_" not in said


def test_a_region_that_the_store_names_is_told_for_the_field() -> None:
    said = remedy(handed_over(), 301, "PermanentRedirect", **{"x-amz-bucket-region": "eu-central-1"})
    assert said == "Set region_name of s3_credentials to eu-central-1."


def test_what_is_not_handed_over_keeps_its_variable() -> None:
    keys = S3Credentials("AKID0123456789", "secret")
    environ = {**ELSEWHERE, "AWS_ENDPOINT_URL_S3": "http://store:9000", "AWS_DEFAULT_REGION": "eu-west-1"}
    settings = resolve_s3_settings(environment_with(keys, environ), names_given(keys))
    assert "AWS_ENDPOINT_URL_S3" in remedy(settings, 404, "NoSuchBucket")
    assert "AWS_DEFAULT_REGION" in remedy(settings, 301, "PermanentRedirect")
    assert "session_token of s3_credentials" in remedy(settings, 400, "ExpiredToken")


def test_keys_of_a_file_are_called_by_their_entry_and_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[team]\naws_access_key_id = AKFROMTHEFILE001\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    said = remedy(resolve_s3_settings(), 403, "SignatureDoesNotMatch")
    assert f"aws_secret_access_key in {file}, profile team" in said


def test_an_endpoint_of_a_profile_is_called_by_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text("[profile team]\nendpoint_url = http://store:9000\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "team")
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(variable, raising=False)
    settings = resolve_s3_settings()
    assert settings.endpoint_name == "endpoint_url of the AWS profile"


@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        (
            S3Credentials(access_key_id="AKID0123456789", endpoint="http://127.0.0.1:9"),
            "secret_access_key of s3_credentials is not set, its partner is",
        ),
        (
            S3Credentials("AKID0123456789", "secret", None, "eu west", "http://127.0.0.1:9"),
            "region_name of s3_credentials: 'eu west' cannot be the name of a region",
        ),
        (
            S3Credentials("AKID0123456789", "secret", None, None, "127.0.0.1:9"),
            "The endpoint from endpoint of s3_credentials has no scheme",
        ),
        (
            S3Credentials("AKID\n0123456789", "secret", None, None, "http://127.0.0.1:9"),
            "Check access_key_id of s3_credentials",
        ),
    ],
)
def test_what_cannot_be_is_told_by_the_librarys_own_names(credentials: S3Credentials, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        list_safetensors("s3://bucket/model", s3_credentials=credentials)
    assert "AWS_ACCESS" not in str(caught.value)
    assert "AWS_SECRET" not in str(caught.value)
    assert "secret'" not in str(caught.value)


def test_a_refused_connection_names_the_setting_that_leads_there() -> None:
    environ = {**ELSEWHERE, "RUNAI_STREAMER_S3_ENDPOINT": "http://127.0.0.1:9", "HEADRACE_S3_ANONYMOUS": "1"}
    with pytest.raises(StoreError, match="RUNAI_STREAMER_S3_ENDPOINT"):
        S3Store(parse_source("s3://bucket/model"), resolve_s3_settings(environ)).list()
