"""az:// by an identity: azure-identity's tokens, which azurite takes over https; renewal before and after they expire."""

from collections.abc import Iterator

import pytest

from headrace.demo.identity import Tls
from headrace.source.uri import parse_source
from headrace.store.azure.principal import AzureIdentity
from headrace.store.azure.request import BlobRequest
from headrace.store.azure.settings import AzureSettings, resolve_azure_settings
from headrace.store.azure.store import AzureStore
from headrace.store.base import read_whole
from headrace.store.errors import NoCredentials, TlsError
from tests.azurite import Azurite, azurite
from tests.store.token_server import TokenServer, token_server

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, loopback_tls: Tls) -> Iterator[Azurite]:
    with azurite(tmp_path_factory.mktemp("azurite"), loopback_tls, tokens=True) as server:
        server.make_container("models")
        server.put("az://models/m/config.json", b"{}")
        yield server


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    """Where this process's identity gets its tokens."""
    with token_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def settings_of(tokens: TokenServer, place: dict[str, str]) -> AzureSettings:
    return resolve_azure_settings(parse_source("az://models/m"), {**place, **tokens.environment})


def authorization(principal: AzureIdentity) -> str:
    request = BlobRequest("GET", "/c")
    principal.authorize(request)
    return request.headers["Authorization"]


@pytest.fixture
def identity(tokens: TokenServer) -> AzureIdentity:
    principal = settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "acct"}).principal
    assert isinstance(principal, AzureIdentity)
    return principal


def test_an_identity_lists_and_reads_over_https(server: Azurite, tokens: TokenServer) -> None:
    store = AzureStore(parse_source("az://models/m"), settings_of(tokens, server.place))
    (item,) = store.list().objects
    assert read_whole(store.open_reader(), item) == b"{}"
    assert store.settings.principal.shown == "the managed identity"
    assert len(tokens.given) == 1


def test_a_certificate_that_is_not_trusted_is_named(server: Azurite) -> None:
    environ = {name: value for name, value in server.environment.items() if name != "REQUESTS_CA_BUNDLE"}
    source = parse_source("az://models/m")
    with pytest.raises(TlsError, match=r"certificate of 127.0.0.1 is not trusted"):
        AzureStore(source, resolve_azure_settings(source, environ)).list()


def test_all_stores_of_one_environment_share_an_identity(tokens: TokenServer) -> None:
    principals = [settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": name}).principal for name in ("a", "b")]
    assert principals[0] is principals[1]
    assert len(tokens.given) == 1


def test_another_environment_has_another_identity(
    tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "a"}).principal
    monkeypatch.setenv("AZURE_CLIENT_ID", "11111111-2222-3333-4444-555555555555")
    assert settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "a"}).principal is not first


def test_a_token_is_kept_while_it_holds_for_long(identity: AzureIdentity, tokens: TokenServer) -> None:
    assert {authorization(identity) for _ in range(3)} == {f"Bearer {tokens.given[0]}"}
    assert len(tokens.given) == 1


def test_a_token_is_renewed_before_it_expires(tokens: TokenServer) -> None:
    tokens.lasts_s = 120
    principal = settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "acct"}).principal
    assert isinstance(principal, AzureIdentity)
    tokens.lasts_s = 3600
    assert authorization(principal) == f"Bearer {tokens.given[-1]}"
    assert len(tokens.given) == 2


def test_a_failed_renewal_ends_nothing_while_the_old_token_holds(
    tokens: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    tokens.lasts_s = 120
    principal = settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "acct"}).principal
    assert isinstance(principal, AzureIdentity)
    tokens.fails = True
    assert authorization(principal) == f"Bearer {tokens.given[0]}"
    assert "still holds for some minutes" in caplog.text
    asked = tokens.asked
    assert authorization(principal) == f"Bearer {tokens.given[0]}"
    assert tokens.asked == asked  # not with every request
    assert tokens.given[0] not in caplog.text


def test_an_expired_token_that_cannot_be_renewed_is_an_error(tokens: TokenServer) -> None:
    tokens.lasts_s = -1
    principal = settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "acct"}).principal
    assert isinstance(principal, AzureIdentity)
    tokens.fails = True
    with pytest.raises(NoCredentials, match="No access token could be had"):
        authorization(principal)


def test_a_refused_token_is_replaced_once_for_all_who_used_it(
    identity: AzureIdentity, tokens: TokenServer
) -> None:
    refused = authorization(identity)
    assert identity.renew(refused)
    assert identity.renew(refused)  # another thread's: there is a new one already
    assert len(tokens.given) == 2
    assert authorization(identity) == f"Bearer {tokens.given[1]}" != refused


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_token_server_is_trusted_by_the_certificates_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, loopback_tls: Tls, variable: str
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(loopback_tls.certificate))
    with token_server(loopback_tls) as tokens:
        for name, value in tokens.environment.items():
            monkeypatch.setenv(name, value)
        principal = settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "acct"}).principal
        assert isinstance(principal, AzureIdentity)


def test_tokens_that_cannot_be_had_are_told_by_the_variable(tokens: TokenServer) -> None:
    tokens.fails = True
    with pytest.raises(NoCredentials, match="IDENTITY_ENDPOINT: No access token could be had"):
        settings_of(tokens, {"AZURE_STORAGE_ACCOUNT_NAME": "acct"})
