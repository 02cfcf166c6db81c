"""Which host, path and region a bucket's requests have: from settings, from the endpoint's name, from the bucket's."""

import pytest

from headrace.source.bad_source import BadSource
from headrace.source.object_uri import parse_object
from headrace.source.uri import parse_source
from headrace.store.errors import BadEndpoint, Unsupported
from headrace.store.s3.settings import S3Settings, resolve_s3_settings
from headrace.store.s3.store import S3Store

NOWHERE = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
KEYS = {"AWS_ACCESS_KEY_ID": "AKID0123456789", "AWS_SECRET_ACCESS_KEY": "secret-0123456789"}
POINT = "arn:aws:s3:eu-west-1:123456789012:accesspoint:models"


def resolve(**variables: str) -> S3Settings:
    return resolve_s3_settings({**NOWHERE, **KEYS, **variables})


@pytest.mark.parametrize(
    ("variables", "bucket", "origin", "path"),
    [
        ({"AWS_REGION": "eu-west-1"}, "models", "https://models.s3.eu-west-1.amazonaws.com", "/"),
        ({"AWS_REGION": "eu-west-1"}, "my.models", "https://s3.eu-west-1.amazonaws.com", "/my.models/"),
        ({"AWS_REGION": "eu-west-1"}, "My_Models", "https://s3.eu-west-1.amazonaws.com", "/My_Models/"),
        ({"AWS_REGION": "cn-north-1"}, "models", "https://models.s3.cn-north-1.amazonaws.com.cn", "/"),
        ({"AWS_REGION": "us-iso-east-1"}, "models", "https://models.s3.us-iso-east-1.c2s.ic.gov", "/"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "m", "https://m.s3.dualstack.us-east-1.amazonaws.com", "/"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "m", "https://m.s3-fips.us-east-1.amazonaws.com", "/"),
        ({"AWS_ENDPOINT_URL": "http://store:9000"}, "models", "http://store:9000", "/models/"),
        ({"AWS_ENDPOINT_URL": "https://cwobject.com"}, "models", "https://models.cwobject.com", "/"),
        ({"AWS_ENDPOINT_URL": "http://cwlota.com"}, "my.models", "http://my.models.cwlota.com", "/"),
        ({"AWS_ENDPOINT_URL": "https://t3.storage.dev"}, "models", "https://models.t3.storage.dev", "/"),
        (
            {"AWS_ENDPOINT_URL": "https://acct.r2.cloudflarestorage.com"},
            "models",
            "https://acct.r2.cloudflarestorage.com",
            "/models/",
        ),
        (
            {"AWS_ENDPOINT_URL": "http://store:9000", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "1"},
            "models",
            "http://models.store:9000",
            "/",
        ),
        (
            {"AWS_REGION": "eu-west-1", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0"},
            "models",
            "https://s3.eu-west-1.amazonaws.com",
            "/models/",
        ),
    ],
)
def test_the_bucket_is_in_the_host_or_in_the_path(
    variables: dict[str, str], bucket: str, origin: str, path: str
) -> None:
    address = resolve(**variables).address_of(bucket)
    assert (address.origin, address.path) == (origin, path)


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("https://acct.r2.cloudflarestorage.com", "auto"),
        ("https://acct.eu.r2.cloudflarestorage.com", "auto"),
        ("https://storage.googleapis.com", "auto"),
        ("https://fly.storage.tigris.dev", "auto"),
        ("https://s3.us-west-004.backblazeb2.com", "us-west-004"),
        ("https://s3.eu-central-2.wasabisys.com", "eu-central-2"),
        ("https://s3.fr-par.scw.cloud", "fr-par"),
        ("https://s3.oss-cn-hangzhou.aliyuncs.com", "oss-cn-hangzhou"),
        ("https://oss-cn-hangzhou-internal.aliyuncs.com", "oss-cn-hangzhou"),
        ("https://cos.ap-guangzhou.myqcloud.com", "ap-guangzhou"),
        ("https://bucket.vpce-1a2b-3c.s3.us-east-2.vpce.amazonaws.com", "us-east-2"),
        ("https://s3.eu-west-3.amazonaws.com", "eu-west-3"),
        ("https://s3.dualstack.eu-west-3.amazonaws.com", "eu-west-3"),
        ("https://s3-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://s3.amazonaws.com", "us-east-1"),
        ("https://minio.example.com", "us-east-1"),
        ("https://r2.cloudflarestorage.com.example.com", "us-east-1"),
    ],
)
def test_the_endpoints_name_tells_the_region(endpoint: str, region: str) -> None:
    assert resolve(AWS_ENDPOINT_URL=endpoint).region == region


def test_a_region_that_is_set_wins_over_what_a_look_alikes_name_tells() -> None:
    settings = resolve(AWS_ENDPOINT_URL="https://acct.r2.cloudflarestorage.com", AWS_REGION="weur")
    assert settings.region == "weur"


def test_amazons_endpoint_of_one_region_wins_over_the_region_that_is_set_for_all() -> None:
    settings = resolve(AWS_ENDPOINT_URL_S3="https://s3.eu-west-3.amazonaws.com", AWS_REGION="us-east-1")
    assert (settings.region, settings.path_style) == ("eu-west-3", False)
    assert settings.origins["region"] == "AWS_ENDPOINT_URL_S3"


def test_what_is_set_about_amazons_endpoint_holds_in_the_region_that_is_found() -> None:
    settings = resolve(AWS_ENDPOINT_URL="https://s3.dualstack.eu-west-3.amazonaws.com")
    assert settings.move("models", "us-west-2", settings.address_of("models"))
    assert settings.address_of("models").origin == "https://models.s3.dualstack.us-west-2.amazonaws.com"


def test_configured_endpoints_can_be_ignored() -> None:
    settings = resolve(AWS_ENDPOINT_URL="http://store:9000", AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="true")
    assert settings.endpoint_url == "https://s3.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    "variable", ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "HEADRACE_S3_ANONYMOUS", "AWS_USE_FIPS_ENDPOINT"]
)
def test_a_switch_that_is_neither_on_nor_off_is_told_by_its_name(variable: str) -> None:
    with pytest.raises(BadEndpoint, match=f"{variable}: 'maybe' is neither on nor off") as caught:
        resolve(**{variable: "maybe"})
    assert caught.value.remedy == "Write 1 or 0."


@pytest.mark.parametrize("separator", [":", "/"])
def test_an_access_points_arn_is_a_bucket(separator: str) -> None:
    source = parse_source(f"s3://arn:aws:s3:eu-west-1:123456789012:accesspoint{separator}models/team/qwen/")
    assert (source.bucket, source.prefix) == (POINT, "team/qwen")
    assert parse_source(source.uri).bucket == POINT


def test_an_object_behind_an_access_point_is_named() -> None:
    source, name = parse_object("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/models/a/b.safetensors")
    assert (source.bucket, source.prefix, name) == (POINT, "a", "b.safetensors")


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:s3::123456789012:accesspoint/alias.mrap/x",
        "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/x",
        "arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/x",
        "arn:aws:s3:eu-west-1:123:accesspoint/models",
        "arn:aws:s3:::bucket/key",
        "arn:",
    ],
)
def test_other_arns_are_refused_with_the_form_that_is_read(arn: str) -> None:
    with pytest.raises(BadSource) as caught:
        parse_source(f"s3://{arn}")
    assert "s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/prefix" in caught.value.remedy


@pytest.mark.parametrize(
    ("variables", "origin"),
    [
        ({}, "https://models-123456789012.s3-accesspoint.eu-west-1.amazonaws.com"),
        (
            {"AWS_USE_DUALSTACK_ENDPOINT": "1"},
            "https://models-123456789012.s3-accesspoint.dualstack.eu-west-1.amazonaws.com",
        ),
        ({"AWS_ENDPOINT_URL": "http://store:9000"}, "http://models-123456789012.store:9000"),
    ],
)
def test_an_access_point_is_asked_at_a_host_of_its_own_in_its_region(
    variables: dict[str, str], origin: str
) -> None:
    address = resolve(AWS_REGION="us-east-1", **variables).address_of(POINT)
    assert (address.origin, address.path, address.region) == (origin, "/", "eu-west-1")


def test_a_directory_bucket_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match="directory bucket") as caught:
        S3Store(parse_source("s3://models--use1-az4--x-s3/qwen"), resolve())
    assert "general purpose bucket" in caught.value.remedy


def test_everything_that_is_used_is_described_with_where_it_came_from() -> None:
    settings = resolve(
        AWS_ENDPOINT_URL="https://acct.r2.cloudflarestorage.com", HEADRACE_S3_REQUEST_PAYER="requester"
    )
    told = {setting.name: setting for setting in S3Store(parse_source("s3://models"), settings).describe()}
    assert told["endpoint"].value == "https://acct.r2.cloudflarestorage.com"
    assert told["endpoint"].origin == "AWS_ENDPOINT_URL"
    assert told["addressing"].value == "path-style"
    assert (told["region"].value, told["region"].origin) == ("auto", "the endpoint, Cloudflare R2")
    assert (told["principal"].value, told["principal"].origin) == (
        "access key AKID…6789",
        "AWS_ACCESS_KEY_ID",
    )
    assert told["request payer"].origin == "HEADRACE_S3_REQUEST_PAYER"
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in repr(told)


@pytest.mark.parametrize(
    ("variables", "origin"),
    [
        ({}, "default"),
        ({"AWS_CA_BUNDLE": __file__}, "AWS_CA_BUNDLE"),
        ({"REQUESTS_CA_BUNDLE": __file__}, "REQUESTS_CA_BUNDLE"),
        ({"HEADRACE_INSECURE_TLS": "1"}, "HEADRACE_INSECURE_TLS"),
    ],
)
def test_whose_certificates_count_is_described(variables: dict[str, str], origin: str) -> None:
    told = S3Store(parse_source("s3://models"), resolve(**variables)).describe()
    assert [setting.origin for setting in told if setting.name == "authorities"] == [origin]
