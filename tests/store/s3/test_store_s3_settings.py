"""One resolver: where the store is and who asks, from variables first and AWS's files after them."""

from pathlib import Path

import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from headrace.store.errors import BadEndpoint, NoCredentials, WrongRegion
from headrace.store.s3.client import make_s3_client
from headrace.store.s3.connection import S3Connection
from headrace.store.s3.credentials import Signer
from headrace.store.s3.settings import S3Settings, resolve_s3_settings

KEYS = {"AWS_ACCESS_KEY_ID": "AKID0123456789", "AWS_SECRET_ACCESS_KEY": "secret-0123456789"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for AWS's files, which the process's own environment names too, as botocore reads that."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def resolve(files: Path | None = None, /, **variables: str) -> S3Settings:
    named = {}
    if files is not None:
        named = {
            "AWS_CONFIG_FILE": str(files / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(files / "credentials"),
        }
    else:
        named = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    return resolve_s3_settings({**named, **variables})


def test_one_endpoint_variable_is_enough_and_means_path_style() -> None:
    settings = resolve(AWS_ENDPOINT_URL="http://127.0.0.1:9000")
    assert (settings.endpoint_url, settings.path_style, settings.region) == (
        "http://127.0.0.1:9000",
        True,
        "us-east-1",
    )


def test_the_variable_of_the_service_wins() -> None:
    settings = resolve(AWS_ENDPOINT_URL_S3="http://s3:1", AWS_ENDPOINT_URL="http://all:2")
    assert settings.endpoint_url == "http://s3:1"
    assert settings.origins["endpoint"] == "AWS_ENDPOINT_URL_S3"


def test_without_an_endpoint_it_is_awss_own_by_region() -> None:
    settings = resolve(AWS_DEFAULT_REGION="eu-west-1")
    assert (settings.endpoint_url, settings.path_style) == ("https://s3.eu-west-1.amazonaws.com", False)
    assert resolve(AWS_REGION="cn-north-1").endpoint_url == "https://s3.cn-north-1.amazonaws.com.cn"


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:9000", "localhost:9000", "store", "//h:1", "ftp://h", "http://", "http:///x", "http://h/b",
     "http://h?x=1", "http://h#x", "http://h:port", "http://h:99999", "http://h:0", "http://[::1"],
)  # fmt: skip
def test_an_endpoint_that_is_none_is_refused_with_the_variable_it_came_from(endpoint: str) -> None:
    with pytest.raises(BadEndpoint, match="The endpoint from AWS_ENDPOINT_URL") as caught:
        resolve(AWS_ENDPOINT_URL=endpoint)
    assert "http://HOST:PORT" in caught.value.remedy


@pytest.mark.parametrize(
    "endpoint", ["http://user:hush-hush@h:1", "http://user:hush-hush@[h", "user:hush-hush@h"]
)
def test_credentials_in_an_endpoint_are_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(BadEndpoint, match="user name or password") as caught:
        resolve(AWS_ENDPOINT_URL=endpoint)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    ["http://h:1/?token=hush", "http://h:1/hush", "h:1?token=hush", "http://[::1?x=hush", "http://h#://hush"],
)
def test_a_path_or_query_in_an_endpoint_is_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(BadEndpoint) as caught:
        resolve(AWS_ENDPOINT_URL=endpoint)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("region", ["us east-1", "us-east-1/", "-", "7", "a" * 64, "é"])
def test_a_region_that_cannot_be_one_is_refused_with_the_variable_it_came_from(region: str) -> None:
    with pytest.raises(WrongRegion, match=r"AWS_REGION: .* cannot be the name of a region") as caught:
        resolve(AWS_REGION=region, AWS_ENDPOINT_URL="http://h:1")
    assert "us-east-1" in caught.value.remedy


def test_a_ca_bundle_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadEndpoint, match="from AWS_CA_BUNDLE does not exist"):
        resolve(AWS_CA_BUNDLE="/no/such.pem")


def test_blanks_around_a_value_are_not_part_of_it() -> None:
    settings = resolve(
        AWS_ENDPOINT_URL=" http://h:1\n",
        AWS_ACCESS_KEY_ID=" AKID\n",
        AWS_SECRET_ACCESS_KEY="secret\n",
        AWS_SESSION_TOKEN="token\n",
    )
    assert settings.endpoint_url == "http://h:1"
    assert settings.frozen_credentials() == Signer("AKID", "secret", "token")


def test_a_profile_gives_what_the_variables_do_not(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "config").write_text(
        "[profile lab]\nregion = eu-north-1\nservices = lab-services\n"
        "[services lab-services]\ns3 =\n  endpoint_url = http://lab:9000\n"
    )
    (files / "credentials").write_text("[lab]\naws_access_key_id = AKLAB\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    settings = resolve(files, AWS_PROFILE="lab")
    assert (settings.endpoint_url, settings.region) == ("http://lab:9000", "eu-north-1")
    assert settings.frozen_credentials().access_key == "AKLAB"
    assert resolve(files, AWS_PROFILE="lab", AWS_REGION="x").region == "x"


@pytest.mark.parametrize("variable", ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"])
def test_a_profile_that_does_not_exist_is_told_even_where_variables_say_all(
    variable: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {variable: "nope", "AWS_REGION": "x", "AWS_ENDPOINT_URL": "http://h:1", **KEYS}
    monkeypatch.setenv(variable, "nope")
    with pytest.raises(NoCredentials, match=r"profile .nope. could not be found"):
        resolve(files, **said)


def test_a_config_file_that_does_not_parse_is_told(files: Path) -> None:
    (files / "config").write_text("[profile\nregion")
    with pytest.raises(NoCredentials, match="AWS's files could not be read"):
        resolve(files)


def test_the_settings_and_what_signs_do_not_show_their_secrets() -> None:
    settings = resolve(AWS_ENDPOINT_URL="http://h:1", AWS_SESSION_TOKEN="hush-hush", **KEYS)
    for shown in (repr(settings), repr(settings.frozen_credentials()), repr(settings.signer())):
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in shown
        assert "hush" not in shown


def with_credentials(credentials: Credentials) -> S3Settings:
    settings = resolve(AWS_ENDPOINT_URL="http://h:1", **KEYS)
    settings.__dict__["_credentials"] = credentials
    return settings


@pytest.mark.parametrize(
    "error", [CredentialRetrievalError(provider="sso", error_msg="gone"), RuntimeError("still expired")]
)
def test_credentials_that_cannot_be_renewed_are_told(error: Exception) -> None:
    def refresh() -> dict[str, str]:
        raise error

    expired = RefreshableCredentials.create_from_metadata(
        {"access_key": "a", "secret_key": "s", "token": "t", "expiry_time": "2020-01-01T00:00:00Z"},
        refresh_using=refresh,
        method="test",
    )
    with pytest.raises(NoCredentials, match="expired and could not be renewed") as caught:
        with_credentials(expired).frozen_credentials()
    assert "Sign in again" in caught.value.remedy


def test_credentials_that_another_thread_renewed_are_kept() -> None:
    settings = with_credentials(Credentials("new", "s"))
    refused = Signer("old", "s", None)
    assert settings.renew_credentials(refused)
    assert settings.frozen_credentials().access_key == "new"


def test_variables_that_did_not_change_give_no_new_credentials() -> None:
    settings = resolve(AWS_ENDPOINT_URL="http://h:1", **KEYS)
    assert not settings.renew_credentials(settings.frozen_credentials())


@pytest.mark.parametrize(
    ("variables", "bucket", "url"),
    [
        ({"AWS_REGION": "eu-west-1"}, "models", "https://models.s3.eu-west-1.amazonaws.com:443"),
        ({"AWS_REGION": "eu-west-1"}, "my.models", "https://s3.eu-west-1.amazonaws.com:443"),
        ({"AWS_ENDPOINT_URL": "http://Store:80"}, "models", "http://store:80"),
    ],
)
def test_the_bucket_is_in_the_host_at_aws_and_in_the_path_elsewhere(
    variables: dict[str, str], bucket: str, url: str
) -> None:
    connection = S3Connection(resolve(**variables, **KEYS), bucket)
    assert connection.http.endpoint.url == url


@pytest.mark.parametrize(
    ("profile", "origin"),
    [
        ("s3 =\n  addressing_style = path\n", "https://s3.eu-north-1.amazonaws.com"),
        ("use_dualstack_endpoint = true\n", "https://models.s3.dualstack.eu-north-1.amazonaws.com"),
        ("s3 =\n  use_dualstack_endpoint = true\n", "https://models.s3.dualstack.eu-north-1.amazonaws.com"),
        ("use_fips_endpoint = true\n", "https://models.s3-fips.eu-north-1.amazonaws.com"),
        ("endpoint_url = http://lab:9000\ns3 =\n  addressing_style = virtual\n", "http://models.lab:9000"),
        (
            "endpoint_url = http://lab:9000\nignore_configured_endpoint_urls = true\n",
            "https://models.s3.eu-north-1.amazonaws.com",
        ),
    ],
)
def test_a_profile_says_how_amazons_endpoints_are_used(
    profile: str, origin: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "config").write_text(f"[profile lab]\nregion = eu-north-1\n{profile}")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert resolve(files, AWS_PROFILE="lab").address_of("models").origin == origin


def test_variables_win_over_the_profile(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "config").write_text(
        "[profile lab]\nregion = eu-north-1\nuse_fips_endpoint = true\ns3 =\n  addressing_style = path\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lab")
    settings = resolve(
        files,
        AWS_PROFILE="lab",
        AWS_USE_FIPS_ENDPOINT="false",
        RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="1",
    )
    assert settings.address_of("models").origin == "https://models.s3.eu-north-1.amazonaws.com"


@pytest.mark.parametrize("bucket", ["models", "my.models"])
@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_REGION": "eu-west-1"},
        {"AWS_ENDPOINT_URL": "http://store:9000"},
        {"AWS_ENDPOINT_URL": "https://cwobject.com"},
        {"AWS_ENDPOINT_URL": "http://store:9000", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "1"},
        {"AWS_REGION": "eu-west-1", "AWS_USE_DUALSTACK_ENDPOINT": "1"},
    ],
)
def test_what_pushes_asks_at_the_same_address_as_what_reads(variables: dict[str, str], bucket: str) -> None:
    settings = resolve(**variables, **KEYS)
    address = settings.address_of(bucket)
    client = make_s3_client(settings, attempts=1, bucket=bucket)
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "model/x"})
    assert url.partition("?")[0] == f"{address.origin}{address.path}model/x"
    assert f"%2F{address.region}%2Fs3%2F" in url


def test_what_pushes_to_an_access_point_asks_at_the_same_address_as_what_reads() -> None:
    point = "arn:aws:s3:eu-west-1:123456789012:accesspoint:models"
    settings = resolve(AWS_REGION="us-east-1", **KEYS)
    address = settings.address_of(point)
    client = make_s3_client(settings, attempts=1, bucket=point)
    url = client.generate_presigned_url("get_object", Params={"Bucket": point, "Key": "model/x"})
    assert url.partition("?")[0] == f"{address.origin}/model/x"
    assert "%2Feu-west-1%2Fs3%2F" in url
