"""az:// on azurite: what is listed, read, looked up and proved."""

import random
from collections.abc import Iterator

import pytest

from headrace.source.uri import parse_source
from headrace.store.azure.connection_string import DEVELOPMENT_ACCOUNT
from headrace.store.azure.settings import resolve_azure_settings
from headrace.store.azure.store import AzureStore
from headrace.store.base import list_below, open_store, read_range, read_whole
from headrace.store.described import Setting, describe
from headrace.store.errors import (
    AccessDenied,
    BadSignature,
    Changed,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    Unreachable,
)
from headrace.store.stored_checksum import checksum_of
from tests.azurite import Azurite, account_signature, azurite
from tests.store.forward_proxy import forward_proxy

DATA = random.Random(3).randbytes(300_000)
STRANGE = [
    "a b",
    "a+b",
    "a%2Fb",
    "ü-日本",
    "quote'\"",
    "q?x=1&y",
    "#hash",
    "~tilde",
    ".dot",
    "x&lt;y",
    "a<b>",
]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite(tmp_path_factory.mktemp("azurite")) as server:
        server.make_container("models")
        server.put("az://models/m/model.safetensors", DATA)
        server.put("az://models/m/empty", b"")
        server.put("az://models/m/sub/deep/file", b"deep")
        server.make_container("void")
        server.make_container("shown", public="container")
        server.put("az://shown/m/config.json", b"{}")
        yield server


def store_of(server: Azurite, uri: str, environ: dict[str, str] | None = None) -> AzureStore:
    source = parse_source(uri)
    return AzureStore(source, resolve_azure_settings(source, environ or server.environment))


def test_a_listing_has_objects_folders_sizes_and_etags(server: Azurite) -> None:
    listing = store_of(server, "az://models/m").list()
    assert [(item.key, item.name, item.size_bytes) for item in listing.objects] == [
        ("m/empty", "empty", 0),
        ("m/model.safetensors", "model.safetensors", len(DATA)),
    ]
    assert all(item.version.startswith("0x") and item.modified_s for item in listing.objects)
    assert listing.folders == ("sub",)


def test_a_containers_root_is_a_place_like_any_other(server: Azurite) -> None:
    assert "m" in store_of(server, "az://models").list().folders


def test_everything_below_is_listed_with_names_from_the_prefix_on(server: Azurite) -> None:
    store = store_of(server, "az://models/m")
    assert sorted(item.name for item in list_below(store)) == ["empty", "model.safetensors", "sub/deep/file"]
    assert [item.name for item in list_below(store, "sub")] == ["sub/deep/file"]
    assert list(list_below(store, "none")) == []


def test_ranges_are_read_over_one_connection(server: Azurite) -> None:
    store = store_of(server, "az://models/m")
    item = store.list().find("model.safetensors")
    assert item is not None
    reader = store.open_reader()
    for start, length in [(0, 1), (12_345, 200_000), (len(DATA) - 1, 1), (5, 0)]:
        assert read_range(reader, item, start, length) == DATA[start : start + length]
    assert read_whole(reader, item) == DATA


def test_a_look_up_needs_no_listing_and_leaves_its_connection_open(server: Azurite) -> None:
    store = store_of(server, "az://models/m")
    found = store.look_up("model.safetensors", 100)
    assert found.prefix == DATA[:100]
    assert found.item == store.list().find("model.safetensors")
    assert read_whole(store.open_reader(), found.item) == DATA


def test_an_empty_object_is_looked_up(server: Azurite) -> None:
    found = store_of(server, "az://models/m").look_up("empty", 8)
    assert (found.item.size_bytes, found.prefix) == (0, b"")


def test_an_object_that_is_not_there_is_not_found(server: Azurite) -> None:
    with pytest.raises(
        NotFound, match=r"az://models/m/none: There is no such object.*BlobNotFound, request id"
    ):
        store_of(server, "az://models/m").look_up("none", 8)


@pytest.mark.parametrize("name", STRANGE)
def test_any_legal_key_is_listed_and_read(server: Azurite, name: str) -> None:
    server.make_container(f"strange-{STRANGE.index(name)}")
    uri = f"az://strange-{STRANGE.index(name)}/top"
    server.put(f"{uri}/{name}", name.encode())
    store = store_of(server, uri)
    (item,) = store.list().objects
    assert item.name == name
    assert read_whole(store.open_reader(), item) == name.encode()
    assert store.look_up(name, 100).item == item


def test_a_replaced_object_is_told_with_both_versions(server: Azurite) -> None:
    server.put("az://models/changing/model.safetensors", b"old")
    store = store_of(server, "az://models/changing")
    (item,) = store.list().objects
    server.put("az://models/changing/model.safetensors", b"newer")
    with pytest.raises(Changed) as caught:
        read_whole(store.open_reader(), item)
    assert f"3 bytes, ETag {item.version}" in str(caught.value)
    assert "now 5 bytes, ETag 0x" in str(caught.value)


def test_a_removed_object_has_changed(server: Azurite) -> None:
    server.put("az://models/leaving/model.safetensors", b"old")
    store = store_of(server, "az://models/leaving")
    (item,) = store.list().objects
    server.ask("DELETE", "az://models/leaving/model.safetensors")
    with pytest.raises(Changed, match=r"Listed: 3 bytes.*now nothing"):
        read_whole(store.open_reader(), item)


def test_a_missing_container_is_told_with_its_place(server: Azurite) -> None:
    with pytest.raises(NotFound, match=f"no such container at {server.url}/{DEVELOPMENT_ACCOUNT}"):
        store_of(server, "az://missing/m").list()


def test_an_empty_prefix_shows_what_lies_around_it(server: Azurite) -> None:
    with pytest.raises(NotFound, match=r"In az://models there is: .*m/"):
        store_of(server, "az://models/nothing").list()
    with pytest.raises(NotFound, match="az://void is empty"):
        store_of(server, "az://void/nothing").list()
    with pytest.raises(NotFound, match=r"one object, not a folder.*Give the folder: az://models/m"):
        store_of(server, "az://models/m/empty").list()


def test_a_wrong_key_is_a_bad_signature(server: Azurite) -> None:
    environ = {**server.place, "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
    with pytest.raises(BadSignature, match="the key of the account devstoreaccount1 is wrong") as caught:
        store_of(server, "az://models/m", environ).list()
    assert "Check AZURE_STORAGE_ACCOUNT_KEY" in caught.value.remedy
    assert caught.value.request_id


def test_a_signature_reads_and_lists(server: Azurite) -> None:
    store = store_of(
        server, "az://models/m", {**server.place, "AZURE_STORAGE_SAS_TOKEN": account_signature("rl")}
    )
    item = store.list().find("model.safetensors")
    assert item is not None
    assert read_whole(store.open_reader(), item) == DATA


def test_an_expired_signature_is_told_as_expired(server: Azurite) -> None:
    expired = account_signature("rl", lasts_s=-60)
    with pytest.raises(ExpiredCredentials, match="in AZURE_STORAGE_SAS_TOKEN expired at 20") as caught:
        store_of(server, "az://models/m", {**server.place, "AZURE_STORAGE_SAS_TOKEN": expired}).list()
    assert "sig=" not in str(caught.value)


def test_a_signature_without_the_permission_is_told_with_those_it_has(server: Azurite) -> None:
    environ = {**server.place, "AZURE_STORAGE_SAS_TOKEN": account_signature("r")}
    with pytest.raises(AccessDenied, match=r"has not the permission that this needs \(it has: r\)"):
        store_of(server, "az://models/m", environ).list()
    found = store_of(server, "az://models/m", environ).look_up("model.safetensors", 4)
    assert found.prefix == DATA[:4]


def test_a_damaged_signature_is_refused_without_being_shown(server: Azurite) -> None:
    damaged = account_signature("rl").replace("sig=", "sig=AAAA")
    with pytest.raises(BadSignature, match="does not take the shared access signature") as caught:
        store_of(server, "az://models/m", {**server.place, "AZURE_STORAGE_SAS_TOKEN": damaged}).list()
    assert "AAAA" not in str(caught.value)


def test_a_public_container_is_read_without_credentials(server: Azurite) -> None:
    store = store_of(server, "az://shown/m", server.place)
    (item,) = store.list().objects
    assert read_whole(store.open_reader(), item) == b"{}"


def test_a_private_container_without_credentials_says_where_they_were_looked_for(server: Azurite) -> None:
    with pytest.raises(NoCredentials, match=r"No Azure credentials were found .*AZURE_STORAGE_SAS_TOKEN"):
        store_of(server, "az://models/m", server.place).list()


def test_anonymous_that_was_asked_for_is_named_where_it_is_refused(server: Azurite) -> None:
    environ = {**server.environment, "AZURE_STORAGE_ANONYMOUS": "true"}
    with pytest.raises(AccessDenied, match="AZURE_STORAGE_ANONYMOUS asks for"):
        store_of(server, "az://models/m", environ).list()


def test_an_account_that_does_not_resolve_names_its_variable() -> None:
    source = parse_source("az://models/m")
    environ = {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1/acct", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}
    with pytest.raises(Unreachable, match="AZURE_STORAGE_ENDPOINT"):
        AzureStore(source, resolve_azure_settings(source, environ)).list()


def test_a_listing_of_several_pages_is_whole(server: Azurite) -> None:
    server.make_container("many")
    source = parse_source("az://many")
    connection = server.connection(source)
    for number in range(130):
        name = f"{number:03}/x" if number % 10 == 0 else f"{number:03}"
        head = connection.send("PUT", f"m/{name}", {}, {"x-ms-blob-type": "BlockBlob"}, b"x")
        assert head.status == 201
        connection.http.read_body()
    connection.http.close()
    settings = resolve_azure_settings(parse_source("az://many/m"), server.environment)
    store = AzureStore(parse_source("az://many/m"), settings, page_objects=25)
    listing = store.list()
    assert [item.name for item in listing.objects] == [f"{n:03}" for n in range(130) if n % 10]
    assert listing.folders == tuple(f"{n:03}" for n in range(0, 130, 10))
    assert len(list(list_below(store))) == 130


def test_check_is_told_endpoint_account_addressing_and_principal(server: Azurite) -> None:
    settings = describe(store_of(server, "az://models/m"))
    assert settings == (
        Setting("endpoint", server.url, "AZURE_STORAGE_ENDPOINT"),
        Setting("account", DEVELOPMENT_ACCOUNT, "AZURE_STORAGE_ACCOUNT_NAME"),
        Setting("addressing", "the account in the path", "found out"),
        Setting("principal", f"the key of the account {DEVELOPMENT_ACCOUNT}", "AZURE_STORAGE_ACCOUNT_KEY"),
    )


def test_the_store_is_opened_by_its_scheme(server: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert open_store(parse_source("AZ://models/m/")).list().folders == ("sub",)
    assert open_store(parse_source("abfs://models/m/")).list().folders == ("sub",)


def test_an_object_without_a_checksum_is_told_to_have_none(server: Azurite) -> None:
    store = store_of(server, "az://models/m")
    (item, _) = store.list().objects
    assert checksum_of(store.open_reader(), item) == "no checksum was written when it was pushed"


def test_an_account_in_the_hosts_name_is_read_and_signed_for(
    server: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.url.rpartition(":")[2]
    host = f"{DEVELOPMENT_ACCOUNT}.blob.core.windows.net"
    environ = {**server.environment, "AZURE_STORAGE_ENDPOINT": f"http://{host}:{port}"}
    with forward_proxy(int(port)) as proxy:  # no resolver leads from this name to here
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        for uri in ("az://models/m", f"abfs://models@{host.replace('blob', 'dfs')}/m"):
            store = store_of(server, uri, environ)
            assert store.settings.endpoint.path == ""
            item = store.list().find("model.safetensors")
            assert item is not None
            assert read_whole(store.open_reader(), item) == DATA
    assert proxy.asked[0].startswith(f"GET http://{host}:{port}/models?")
