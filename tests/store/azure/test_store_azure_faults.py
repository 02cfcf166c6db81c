"""az:// where the service misbehaves: versions, refusals, renewal, clocks, listings."""

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from headrace.source.uri import parse_source
from headrace.store.azure.settings import resolve_azure_settings
from headrace.store.azure.store import AzureStore
from headrace.store.base import Target, list_below, read_whole
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    Changed,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    StoreError,
    Throttled,
    TransientError,
    Unsupported,
)
from tests.store.scripted_azure import (
    REQUEST_ID,
    Answer,
    ScriptedAzure,
    Stored,
    blob_entry,
    error,
    page_of,
    scripted_azure,
)
from tests.store.token_server import token_server

SAS = "sv=2021-12-02&sp=r&sig=SECRET"


@pytest.fixture
def server() -> Iterator[ScriptedAzure]:
    with scripted_azure() as server:
        server.blobs["m/config.json"] = Stored(b"0123456789")
        yield server


def store_of(server: ScriptedAzure, **environ: str) -> AzureStore:
    source = parse_source("az://models/m")
    return AzureStore(source, resolve_azure_settings(source, {**server.environment, **environ}))


def refused_by(server: ScriptedAzure, answer: Answer, **environ: str) -> StoreError:
    """What a listing raises when it is answered so."""
    server.refuse = lambda asked: answer
    with pytest.raises(StoreError) as caught:
        store_of(server, **environ).list()
    return caught.value


def test_2500_keys_come_in_pages(server: ScriptedAzure) -> None:
    server.blobs = {f"m/{number:05}": Stored(b"x") for number in range(2500)}
    assert [item.name for item in store_of(server).list().objects] == [f"{n:05}" for n in range(2500)]
    assert [asked.query.get("marker") for asked in server.log] == [None, "m/00999", "m/01999"]


def test_a_store_that_ignores_conditions_is_found_out_by_its_etag(server: ScriptedAzure) -> None:
    store = store_of(server)
    (item,) = store.list().objects
    server.ignores_conditions = True
    server.blobs["m/config.json"] = Stored(b"9876543210", "0x2")
    with pytest.raises(Changed, match="listed as 0x1, now 0x2"):
        read_whole(store.open_reader(), item)


def test_a_removed_object_has_changed(server: ScriptedAzure) -> None:
    store = store_of(server)
    (item,) = store.list().objects
    del server.blobs["m/config.json"]
    with pytest.raises(Changed, match="removed after it was listed"):
        read_whole(store.open_reader(), item)


def test_a_read_goes_on_at_the_missing_byte(server: ScriptedAzure) -> None:
    store = store_of(server)
    (item,) = store.list().objects
    buffer = bytearray(10)
    target = Target([memoryview(buffer)])
    buffer[:4] = b"0123"
    target.received = 4
    store.open_reader().read_into(item, 0, target)
    assert buffer == b"0123456789"
    assert server.log[-1].headers["x-ms-range"] == "bytes=4-9"
    assert server.log[-1].headers["if-match"] == '"0x1"'


@pytest.mark.parametrize("status", [429, 503])
def test_throttling_says_how_long_to_wait(server: ScriptedAzure, status: int) -> None:
    caught = refused_by(server, error(status, "ServerBusy", Retry_After="7"))
    assert isinstance(caught, Throttled)
    assert caught.retry_after_s == 7


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (500, "OperationTimedOut"), (408, "")])
def test_a_failing_store_is_worth_trying_again(server: ScriptedAzure, status: int, code: str) -> None:
    assert isinstance(refused_by(server, error(status, code)), TransientError)


def test_a_token_that_the_store_refuses_is_replaced_in_the_middle_of_a_load(
    server: ScriptedAzure, monkeypatch: pytest.MonkeyPatch
) -> None:
    with token_server() as tokens:
        for name, value in tokens.environment.items():
            monkeypatch.setenv(name, value)
        store = store_of(server, AZURE_STORAGE_ACCOUNT_KEY="", **tokens.environment)
        (item,) = store.list().objects
        old = f"Bearer {tokens.given[0]}"
        server.refuse = lambda asked: (
            error(401, "InvalidAuthenticationInfo") if asked.headers["authorization"] == old else None
        )
        assert read_whole(store.open_reader(), item) == b"0123456789"
        assert len(tokens.given) == 2


def test_after_a_refusal_nothing_is_asked_without_credentials(server: ScriptedAzure) -> None:
    caught = refused_by(server, error(403, "AuthorizationPermissionMismatch"))
    assert isinstance(caught, AccessDenied)
    assert "Storage Blob Data Reader" in caught.remedy
    assert all("authorization" in asked.headers for asked in server.log)
    assert len(server.log) == 1


def test_an_error_names_status_code_and_request_id_and_repeats_no_signature(server: ScriptedAzure) -> None:
    detail = (
        "The MAC signature found in the HTTP request 'SECRETMAC=' is not the same as any computed signature."
    )
    caught = refused_by(
        server, error(403, "AuthenticationFailed", "Server failed to authenticate the request.", detail)
    )
    assert isinstance(caught, BadSignature)
    assert f"(HTTP 403, AuthenticationFailed, request id {REQUEST_ID})" in str(caught)
    assert "SECRETMAC" not in str(caught)


@pytest.mark.parametrize(("off_s", "words"), [(-7200, "120 minutes ahead of"), (7200, "120 minutes behind")])
def test_a_clock_that_is_off_is_called_out(server: ScriptedAzure, off_s: int, words: str) -> None:
    date = formatdate(time.time() + off_s, usegmt=True)
    caught = refused_by(server, error(403, "AuthenticationFailed", Date=date))
    assert isinstance(caught, BadSignature)
    assert f"This machine's clock is {words} the store's." in str(caught)
    assert "NTP" in caught.remedy


@pytest.mark.parametrize(
    ("code", "status", "kind", "words"),
    [
        ("AuthorizationFailure", 403, AccessDenied, "firewall"),
        ("KeyBasedAuthenticationNotPermitted", 403, AccessDenied, "takes no keys"),
        ("AccountIsDisabled", 403, AccessDenied, "account is disabled"),
        ("ContainerNotFound", 404, NotFound, "no such container"),
        ("ContainerBeingDeleted", 409, NotFound, "being deleted"),
        ("InvalidResourceName", 400, NotFound, "takes it for no name"),
        ("AccountRequiresHttps", 400, BadEndpoint, "Write https://"),
        ("BlobArchived", 409, Unsupported, "archive tier"),
        ("Md5Mismatch", 400, TransientError, "not what was sent"),
        ("InvalidHeaderValue", 400, Unsupported, "refuses the request: Scripted."),
    ],
)
def test_the_services_own_codes_are_told_in_words(
    server: ScriptedAzure, code: str, status: int, kind: type[StoreError], words: str
) -> None:
    caught = refused_by(server, error(status, code))
    assert type(caught) is kind
    assert words in str(caught)
    assert (caught.status, caught.code, caught.request_id) == (status, code, REQUEST_ID)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AuthorizationPermissionMismatch", "has not the permission that this needs (it has: r)"),
        ("AuthorizationProtocolMismatch", "https only"),
        ("AuthorizationSourceIPMismatch", "this machine's address"),
        ("AuthorizationResourceTypeMismatch", "containers and their objects"),
        ("KeyBasedAuthenticationNotPermitted", "takes no signatures"),
        ("AuthorizationFailure", "does not cover this, or the account's firewall"),
    ],
)
def test_what_a_signature_does_not_cover_is_told(server: ScriptedAzure, code: str, words: str) -> None:
    caught = refused_by(server, error(403, code), AZURE_STORAGE_ACCOUNT_KEY="", AZURE_STORAGE_SAS_TOKEN=SAS)
    assert type(caught) is AccessDenied
    assert words in str(caught)
    assert "SECRET" not in str(caught)


def test_a_signature_that_expires_in_the_middle_of_a_load_is_told_as_expired(server: ScriptedAzure) -> None:
    sas = "sv=2021-12-02&sp=rl&se=2020-01-01&sig=SECRET"
    caught = refused_by(
        server, error(403, "AuthenticationFailed"), AZURE_STORAGE_ACCOUNT_KEY="", AZURE_STORAGE_SAS_TOKEN=sas
    )
    assert isinstance(caught, ExpiredCredentials)
    assert "expired at 2020-01-01" in str(caught)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "ResourceNotFound"),
        (409, "PublicAccessNotPermitted"),
        (401, "NoAuthenticationInformation"),
        (403, ""),
    ],
)
def test_a_stranger_who_is_turned_away_needs_credentials(
    server: ScriptedAzure, status: int, code: str
) -> None:
    caught = refused_by(server, error(status, code), AZURE_STORAGE_ACCOUNT_KEY="")
    assert isinstance(caught, NoCredentials)
    assert "az login" in caught.remedy
    assert "authorization" not in server.log[-1].headers


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>hello</html>", "not an EnumerationResults"),
        (b"not XML", "not an EnumerationResults"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><EnumerationResults><Blobs/></EnumerationResults>", "not an Enum"),
        (b"<EnumerationResults/>", "has no Blobs"),
        (page_of(blob_entry("elsewhere/x", Stored(b""))), "not under the prefix"),
        (page_of(blob_entry("m/x", Stored(b"")).replace(">0<", ">-1<")), "the size '-1'"),
        (page_of("<BlobPrefix><Name>q/</Name></BlobPrefix>"), "not under the prefix"),
        (page_of("<Blob><Name>m/x</Name></Blob>"), "no properties"),
    ],
)
def test_what_is_no_listing_is_a_bad_endpoint(server: ScriptedAzure, body: bytes, why: str) -> None:
    caught = refused_by(server, Answer(200, body))
    assert isinstance(caught, BadEndpoint)
    assert why in str(caught)
    assert "Check AZURE_STORAGE_ENDPOINT" in caught.remedy


def test_another_server_is_not_taken_for_the_blob_service(server: ScriptedAzure) -> None:
    caught = refused_by(server, Answer(404, b"<html>", {"x-ms-request-id": None}))
    assert isinstance(caught, BadEndpoint)


def test_directories_of_a_hierarchical_namespace_are_no_objects(server: ScriptedAzure) -> None:
    directory = blob_entry("m/sub", Stored(b""), "<ResourceType>directory</ResourceType>")
    file = blob_entry("m/sub/x", Stored(b"1"), "<ResourceType>file</ResourceType>")
    server.refuse = lambda asked: Answer(200, page_of(directory + file + blob_entry("m/dir/", Stored(b""))))
    assert [item.name for item in list_below(store_of(server))] == ["sub/x"]


def test_blobs_that_hadoops_tools_mark_as_folders_are_no_objects(server: ScriptedAzure) -> None:
    marked = blob_entry("m/sub", Stored(b""), metadata="<hdi_isfolder>true</hdi_isfolder>")
    file = blob_entry("m/sub/x", Stored(b"1"), metadata="<hdi_isfolder>false</hdi_isfolder>")
    server.refuse = lambda asked: Answer(200, page_of(marked + file))
    store = store_of(server)
    assert [item.name for item in list_below(store)] == ["sub/x"]
    assert ([item.name for item in store.list().objects], store.list().folders) == ([], ("sub",))


def test_a_name_that_xml_cannot_hold_is_unquoted(server: ScriptedAzure) -> None:
    entry = blob_entry("m/a%EF%BF%BEb", Stored(b"1")).replace("<Name>", '<Name Encoded="true">')
    server.refuse = lambda asked: Answer(200, page_of(entry))
    assert [item.name for item in store_of(server).list().objects] == ["a\ufffeb"]


def test_a_server_without_delimiters_has_folders_all_the_same(server: ScriptedAzure) -> None:
    entries = "".join(blob_entry(f"m/{name}", Stored(b"1")) for name in ("x", "sub/y", "sub/z"))
    server.refuse = lambda asked: Answer(200, page_of(entries))
    listing = store_of(server).list()
    assert ([item.name for item in listing.objects], listing.folders) == (["x"], ("sub",))


def test_a_signature_goes_with_every_request_and_into_no_log(
    server: ScriptedAzure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    store = store_of(server, AZURE_STORAGE_ACCOUNT_KEY="", AZURE_STORAGE_SAS_TOKEN=SAS)
    (item,) = store.list().objects
    read_whole(store.open_reader(), item)
    assert [asked.query["sig"] for asked in server.log] == ["SECRET", "SECRET"]
    assert "SECRET" not in caplog.text


def test_a_container_that_is_read_by_nobody_in_particular_says_so(
    server: ScriptedAzure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace")
    store_of(server, AZURE_STORAGE_ACCOUNT_KEY="").list()
    assert "read without credentials" in caplog.text
