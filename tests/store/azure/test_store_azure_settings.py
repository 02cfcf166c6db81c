"""Where az:// leads and who asks, by URI and environment."""

import logging
import os
import subprocess
import sys

import pytest

from headrace.source.uri import parse_source
from headrace.store.azure.connection_string import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    parse_connection_string,
)
from headrace.store.azure.principal import Anonymous, SharedAccessSignature, SharedKey
from headrace.store.azure.request import BlobRequest
from headrace.store.azure.settings import AzureSettings, resolve_azure_settings
from headrace.store.errors import BadEndpoint, NoCredentials

KEY = "c2VjcmV0LWtleQ=="
SAS = "sv=2021-12-02&sr=c&sp=rl&se=2030-01-01T00%3A00%3A00Z&sig=SECRET%2Fx%3D"
FULL = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"


def resolve(uri: str, **environ: str) -> AzureSettings:
    return resolve_azure_settings(parse_source(uri), environ)


@pytest.mark.parametrize(
    ("uri", "environ", "url", "path", "account", "named_by"),
    [
        (
            "az://c/p",
            {"AZURE_STORAGE_ACCOUNT_NAME": "acct"},
            "https://acct.blob.core.windows.net",
            "",
            "acct",
            "AZURE_STORAGE_ACCOUNT_NAME",
        ),
        (
            "az://c",
            {"AZURE_STORAGE_ACCOUNT": "acct"},
            "https://acct.blob.core.windows.net",
            "",
            "acct",
            "AZURE_STORAGE_ACCOUNT",
        ),
        (
            "az://other.blob.core.windows.net/c",
            {"AZURE_STORAGE_ACCOUNT_NAME": "acct"},
            "https://other.blob.core.windows.net",
            "",
            "other",
            "the URI",
        ),
        (
            "abfss://c@acct.dfs.core.usgovcloudapi.net/p",
            {},
            "https://acct.blob.core.usgovcloudapi.net",
            "",
            "acct",
            "the URI",
        ),
        (
            "az://acct-secondary.blob.core.windows.net/c",
            {},
            "https://acct-secondary.blob.core.windows.net",
            "",
            "acct",
            "the URI",
        ),
        (
            "az://c",
            {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/devstoreaccount1/"},
            "http://127.0.0.1:10000",
            "/devstoreaccount1",
            "devstoreaccount1",
            "AZURE_STORAGE_ENDPOINT",
        ),
        (
            "az://c",
            {"AZURE_STORAGE_ENDPOINT": "http://localhost:10000", "AZURE_STORAGE_ACCOUNT_NAME": "acct"},
            "http://localhost:10000",
            "/acct",
            "acct",
            "AZURE_STORAGE_ENDPOINT",
        ),
        (
            "az://c",
            {"AZURE_STORAGE_ENDPOINT": "https://acct.blob.local.azurestack.external"},
            "https://acct.blob.local.azurestack.external",
            "",
            "acct",
            "AZURE_STORAGE_ENDPOINT",
        ),
        (
            "az://acct.blob.local.azurestack.external/c",
            {"AZURE_STORAGE_ENDPOINT": "https://acct.blob.local.azurestack.external:8443"},
            "https://acct.blob.local.azurestack.external:8443",
            "",
            "acct",
            "the URI",
        ),
        (
            "az://c",
            {"AZURE_STORAGE_CONNECTION_STRING": FULL.replace("core.windows.net", "core.chinacloudapi.cn")},
            "https://acct.blob.core.chinacloudapi.cn",
            "",
            "acct",
            "AZURE_STORAGE_CONNECTION_STRING",
        ),
        (
            "az://c",
            {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"},
            "http://127.0.0.1:10000",
            "/devstoreaccount1",
            "devstoreaccount1",
            "AZURE_STORAGE_CONNECTION_STRING",
        ),
    ],
)
def test_what_names_the_endpoint_more_closely_wins(
    uri: str, environ: dict[str, str], url: str, path: str, account: str, named_by: str
) -> None:
    endpoint = resolve(uri, HEADRACE_AZURE_ANONYMOUS="1", **environ).endpoint
    assert (endpoint.url, endpoint.path, endpoint.account, endpoint.named_by) == (
        url,
        path,
        account,
        named_by,
    )


def test_a_cloud_is_signed_in_to_where_it_signs_in() -> None:
    china = resolve("az://a.blob.core.chinacloudapi.cn/c", HEADRACE_AZURE_ANONYMOUS="1").endpoint
    usual = resolve("az://a.blob.core.windows.net/c", HEADRACE_AZURE_ANONYMOUS="1").endpoint
    assert (china.authority_host, usual.authority_host) == ("login.chinacloudapi.cn", "")


@pytest.mark.parametrize(
    ("uri", "environ", "why"),
    [
        ("az://c", {}, "No storage account is named"),
        ("az://c", {"AZURE_STORAGE_ACCOUNT_NAME": "https://acct"}, "no account's name"),
        ("az://c", {"AZURE_STORAGE_ENDPOINT": "acct.blob.core.windows.net"}, "no scheme"),
        ("az://c", {"AZURE_STORAGE_ENDPOINT": "https://u:p@host"}, "user name or password"),
        ("az://c", {"AZURE_STORAGE_ENDPOINT": "https://host/acct/container"}, "an account at most"),
        ("az://c", {"AZURE_STORAGE_ENDPOINT": "https://host:0"}, "an account at most"),
        ("az://c", {"AZURE_STORAGE_CONNECTION_STRING": "nonsense"}, "no connection string"),
        ("az://c", {"AZURE_STORAGE_CONNECTION_STRING": f"AccountKey={KEY}"}, "neither AccountName nor"),
        ("az://acct.blob.evil.example/c", {}, "none of the clouds that are known"),
    ],
)
def test_an_endpoint_that_cannot_be_is_told(uri: str, environ: dict[str, str], why: str) -> None:
    with pytest.raises(BadEndpoint, match=why):
        resolve(uri, **environ)


def test_a_connection_string_gives_key_or_signature() -> None:
    keyed = resolve("az://c", AZURE_STORAGE_CONNECTION_STRING=FULL).principal
    assert isinstance(keyed, SharedKey)
    assert (keyed.account, keyed.key) == ("acct", b"secret-key")
    text = f"BlobEndpoint=https://acct.blob.core.windows.net/;SharedAccessSignature={SAS}"
    signed = resolve("az://c", AZURE_STORAGE_CONNECTION_STRING=text).principal
    assert isinstance(signed, SharedAccessSignature)
    assert signed.value == SAS


def test_a_connection_string_without_credentials_leaves_them_to_other_variables() -> None:
    settings = resolve(
        "az://c",
        AZURE_STORAGE_CONNECTION_STRING="BlobEndpoint=http://127.0.0.1:1/acct",
        AZURE_STORAGE_ACCOUNT_KEY=KEY,
    )
    assert (settings.endpoint.url, settings.endpoint.path) == ("http://127.0.0.1:1", "/acct")
    assert settings.principal.origin == "AZURE_STORAGE_ACCOUNT_KEY"


def test_the_emulators_key_is_known() -> None:
    parsed = parse_connection_string("UseDevelopmentStorage=true;")
    assert (parsed.account, parsed.key) == (DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)


def test_what_is_given_counts_in_this_order() -> None:
    given = {
        "AZURE_STORAGE_ANONYMOUS": "true",
        "AZURE_STORAGE_CONNECTION_STRING": FULL,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_SAS_TOKEN": SAS,
    }
    names = list(given)
    for number, name in enumerate(names):
        left = {other: given[other] for other in names[number:]}
        principal = resolve("az://c", AZURE_STORAGE_ACCOUNT_NAME="acct", **left).principal
        assert principal.origin == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AZURE_STORAGE_ACCOUNT_KEY", "SECRET is no base64!"),
        ("AZURE_STORAGE_SAS_TOKEN", "SECRET"),
        ("AZURE_STORAGE_SAS_TOKEN", "sig=SECRET x"),
        ("AZURE_STORAGE_SAS_TOKEN", "sig=SECRET\nx"),
        ("AZURE_STORAGE_SAS_TOKEN", "https://acct.blob.core.windows.net/c?sv=1&sig=SECRET"),
    ],
)
def test_a_secret_that_is_none_is_told_without_repeating_it(name: str, value: str) -> None:
    with pytest.raises(NoCredentials) as caught:
        resolve("az://c", AZURE_STORAGE_ACCOUNT_NAME="acct", **{name: value})
    assert name in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_what_opens_one_account_is_not_sent_to_another(name: str) -> None:
    value = {"AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_SAS_TOKEN": SAS}[name]
    with pytest.raises(NoCredentials, match="are for the account mine; the URI names other"):
        resolve("az://other.blob.core.windows.net/c", AZURE_STORAGE_ACCOUNT_NAME="mine", **{name: value})
    with pytest.raises(NoCredentials, match="are for the account acct; the URI names other"):
        resolve("az://other.blob.core.windows.net/c", AZURE_STORAGE_CONNECTION_STRING=FULL)


def test_what_an_endpoint_or_a_connection_string_is_good_for_is_not_sent_elsewhere() -> None:
    other = "az://other.blob.core.windows.net/c"
    with pytest.raises(NoCredentials, match="for the account mine"):
        resolve(
            other, AZURE_STORAGE_ENDPOINT="https://mine.blob.core.windows.net", AZURE_STORAGE_SAS_TOKEN=SAS
        )
    text = f"BlobEndpoint=https://mine.blob.core.windows.net;SharedAccessSignature={SAS}"
    with pytest.raises(NoCredentials, match="for the account mine"):
        resolve(other, AZURE_STORAGE_CONNECTION_STRING=text)


def test_the_dfs_address_of_an_account_is_read_as_its_blob_address() -> None:
    environ = {"AZURE_STORAGE_ENDPOINT": "https://acct.dfs.core.windows.net", "AZURE_STORAGE_ANONYMOUS": "1"}
    assert resolve("az://c", **environ).endpoint.url == "https://acct.blob.core.windows.net"


def test_a_signature_is_appended_as_it_is_and_shown_without_its_secret() -> None:
    principal = resolve(
        "az://c", AZURE_STORAGE_ACCOUNT_NAME="acct", AZURE_STORAGE_SAS_TOKEN=f"?{SAS}"
    ).principal
    request = BlobRequest("GET", "/c", {"comp": "list"})
    principal.authorize(request)
    assert request.target == f"/c?comp=list&{SAS}"
    assert "SECRET" not in f"{principal!r}{principal.shown}{principal.remedy}{request!r}"
    assert principal.shown == "a shared access signature (permissions rl, expires 2030-01-01T00:00:00Z)"


def test_without_any_credentials_the_container_is_asked_anonymously() -> None:
    principal = resolve("az://c", AZURE_STORAGE_ACCOUNT_NAME="acct").principal
    assert isinstance(principal, Anonymous)
    assert not principal.asked_for
    assert "AZURE_STORAGE_SAS_TOKEN" in principal.origin


def test_an_identity_that_cannot_be_had_is_an_error_and_not_anonymous(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "WorkloadIdentityCredential")
    environ = {
        "AZURE_FEDERATED_TOKEN_FILE": f"{tmp_path}/none",
        "AZURE_CLIENT_ID": "client",
        "AZURE_TENANT_ID": "tenant",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoCredentials, match="AZURE_FEDERATED_TOKEN_FILE: No access token could be had"):
        resolve("az://c", AZURE_STORAGE_ACCOUNT_NAME="acct", **environ)


def test_a_missing_library_is_told_in_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(NoCredentials) as caught:
        resolve("az://c", AZURE_STORAGE_ACCOUNT_NAME="acct", AZURE_CLIENT_ID="x")
    assert "pip install 'headrace[azure]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_and_signatures_load_no_library_of_the_vendors() -> None:
    code = (
        "import sys; from headrace.source.uri import parse_source; from headrace.store.base import open_store; "
        "open_store(parse_source('az://c/p')).open_reader(); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('azure', 'msal', 'requests', 'botocore')])"
    )
    environ = {**os.environ, "AZURE_STORAGE_ACCOUNT_NAME": "acct"}
    for name, value in [("AZURE_STORAGE_ACCOUNT_KEY", KEY), ("AZURE_STORAGE_SAS_TOKEN", SAS)]:
        ran = subprocess.run([sys.executable, "-c", code], env={**environ, name: value}, capture_output=True)
        assert (ran.stdout.strip(), ran.stderr) == (b"[]", b"")


def test_a_signature_over_plain_http_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        resolve(
            "az://c",
            AZURE_STORAGE_ENDPOINT="http://storage.example/acct",
            AZURE_STORAGE_SAS_TOKEN=SAS,
        )
    assert "sent unencrypted" in caplog.text
    assert "SECRET" not in caplog.text
