"""Run:ai's variables and credentials that are handed over: what they mean, and how bad ones are refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.source.uri import parse_source
from headrace.store.s3.store import S3Store
from headrace.stream.library.credentials import BadCredentials, Places, S3Credentials, environment_with
from headrace.stream.variables import BadSetting, StreamSettings, check_positive, read_settings

NAMES = ("RUNAI_STREAMER_CONCURRENCY", "RUNAI_STREAMER_CHUNK_BYTESIZE", "RUNAI_STREAMER_MEMORY_LIMIT")


def test_variables_are_read_as_run_ai_reads_them() -> None:
    assert read_settings({}) == StreamSettings(None, None, None)
    assert read_settings(dict.fromkeys(NAMES, "")) == StreamSettings(None, None, None)
    assert read_settings(dict(zip(NAMES, ("16", " 8388608 ", "-1"), strict=True))) == StreamSettings(
        16, 8388608, -1
    )
    assert read_settings({NAMES[2]: "0"}).memory_limit == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["many", "1.5", "1_000", "٣", "9" * 30, "--1", "-2"])
def test_a_bad_value_is_refused_with_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        read_settings({name: value})


@pytest.mark.parametrize(("name", "value"), [(NAMES[0], "0"), (NAMES[1], "0"), (NAMES[1], "4095")])
def test_a_value_that_is_too_small_is_refused_with_the_least(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} is {value}. Set it to a whole number of at least"):
        read_settings({name: value})


@pytest.mark.parametrize("value", [0, -1, True, "3", float("nan")])
def test_rates_and_times_are_numbers_above_nothing(value: Any) -> None:
    check_positive(None, "x")
    check_positive(0.5, "x")
    with pytest.raises(BadSetting, match="x is "):
        check_positive(value, "x")


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "theirs",
    "AWS_SECRET_ACCESS_KEY": "their secret",
    "AWS_SESSION_TOKEN": "their token",
    "AWS_PROFILE": "their profile",
    "AWS_DEFAULT_REGION": "their-region-1",
    "AWS_ENDPOINT_URL": "http://their.host",
    "PATH": "/bin",
}


def test_without_credentials_the_environment_is_as_it_is() -> None:
    assert environment_with(None, ENVIRONMENT) == ENVIRONMENT
    assert environment_with(S3Credentials(), ENVIRONMENT) == ENVIRONMENT


def test_a_key_pair_takes_nothing_of_another_principal() -> None:
    result = environment_with(S3Credentials("ours", "our secret"), ENVIRONMENT)
    assert result == {
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_SECRET_ACCESS_KEY": "our secret",
        "AWS_DEFAULT_REGION": "their-region-1",
        "AWS_ENDPOINT_URL": "http://their.host",
        "PATH": "/bin",
    }


@pytest.mark.parametrize("variable", ["HEADRACE_S3_ANONYMOUS", "RUNAI_STREAMER_S3_UNSIGNED"])
def test_a_key_pair_signs_though_the_environment_asks_for_no_signature(variable: str) -> None:
    asked = {**ENVIRONMENT, variable: "1"}
    assert variable not in environment_with(S3Credentials("ours", "our secret"), asked)
    assert environment_with(None, asked)[variable] == "1"


def test_every_field_of_any_object_counts_and_wins_over_each_of_its_variables() -> None:
    given = SimpleNamespace(
        access_key_id="ours",
        secret_access_key="our secret",
        session_token="our token",
        region_name="our-region-1",
        endpoint="http://our.host",
    )
    before = {**ENVIRONMENT, "AWS_REGION": "their-region-2", "AWS_ENDPOINT_URL_S3": "http://their.s3.host"}
    assert environment_with(given, before) == {
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_SECRET_ACCESS_KEY": "our secret",
        "AWS_SESSION_TOKEN": "our token",
        "AWS_REGION": "our-region-1",
        "AWS_ENDPOINT_URL_S3": "http://our.host",
        "PATH": "/bin",
    }


def test_region_and_endpoint_alone_leave_the_principal() -> None:
    result = environment_with(S3Credentials(region_name="our-region-1", endpoint="http://h"), ENVIRONMENT)
    assert result["AWS_ACCESS_KEY_ID"] == "theirs"
    assert result["AWS_PROFILE"] == "their profile"
    assert (result["AWS_REGION"], result["AWS_ENDPOINT_URL_S3"]) == ("our-region-1", "http://h")


def test_all_buckets_of_one_call_share_one_resolver() -> None:
    places = Places(S3Credentials("ours", "our secret", endpoint="http://127.0.0.1:9"))
    stores = [places.open(parse_source(f"s3://{bucket}/model")) for bucket in ("one", "two")]
    assert all(isinstance(store, S3Store) for store in stores)
    assert stores[0].settings is stores[1].settings  # type: ignore[attr-defined]


class _Hidden:
    def __str__(self) -> str:
        return "**********"


@pytest.mark.parametrize(
    "given",
    [{"access_key_id": "ours", "secret_access_key": "our secret"}, ("ours", "our secret"), "our secret"],
)
def test_credentials_without_the_fields_are_refused_and_not_replaced_by_the_environments(
    given: object,
) -> None:
    with pytest.raises(
        BadCredentials, match=rf"is a {type(given).__name__}.*S3Credentials\(access_key_id="
    ) as caught:
        environment_with(given, ENVIRONMENT)
    assert "our secret" not in str(caught.value)


@pytest.mark.parametrize("secret", [b"our secret", 5, _Hidden()])
def test_a_field_that_is_no_text_is_refused_without_being_shown(secret: Any) -> None:
    with pytest.raises(BadCredentials, match="secret_access_key in s3_credentials is a ") as caught:
        environment_with(S3Credentials("ours", secret), ENVIRONMENT)
    assert "our secret" not in str(caught.value)
