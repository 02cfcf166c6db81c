"""gs:// on fake-gcs-server: what is listed, read, looked up and proved."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.identity import Tls
from headrace.source.uri import parse_source
from headrace.store.base import list_below, open_store, read_range, read_whole
from headrace.store.described import Setting, describe
from headrace.store.errors import Changed, NotFound, TlsError
from headrace.store.gcs.settings import resolve_gcs_settings
from headrace.store.gcs.store import GcsStore
from headrace.store.stored_checksum import StoredChecksum, checksum_of
from tests.fake_gcs import FakeGcs, fake_gcs

DATA = random.Random(3).randbytes(300_000)
STRANGE = ["a b", "a+b", "a%2Fb", "ü-日本", "quote'\"", "q?x=1&y", "#hash", "back\\slash", "~tilde", ".dot"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    folder = tmp_path_factory.mktemp("fake-gcs")
    with fake_gcs(folder) as server:
        server.make_bucket("models")
        server.put("models", "m/model.safetensors", DATA)
        server.put("models", "m/empty", b"")
        server.put("models", "m/sub/deep/file", b"deep")
        server.make_bucket("void")
        yield server


def store_of(gcs: FakeGcs, uri: str) -> GcsStore:
    return GcsStore(parse_source(uri), resolve_gcs_settings(gcs.environment))


def test_a_listing_has_objects_folders_sizes_and_generations(gcs: FakeGcs) -> None:
    listing = store_of(gcs, "gs://models/m").list()
    assert [(item.key, item.name, item.size_bytes) for item in listing.objects] == [
        ("m/empty", "empty", 0),
        ("m/model.safetensors", "model.safetensors", len(DATA)),
    ]
    assert all(item.version.isdigit() and item.modified_s for item in listing.objects)
    assert listing.folders == ("sub",)


def test_a_buckets_root_is_a_place_like_any_other(gcs: FakeGcs) -> None:
    assert "m" in store_of(gcs, "gs://models").list().folders


def test_everything_below_is_listed_with_names_from_the_prefix_on(gcs: FakeGcs) -> None:
    store = store_of(gcs, "gs://models/m")
    assert sorted(item.name for item in list_below(store)) == ["empty", "model.safetensors", "sub/deep/file"]
    assert [item.name for item in list_below(store, "sub")] == ["sub/deep/file"]
    assert list(list_below(store, "none")) == []


def test_ranges_are_read_over_one_connection(gcs: FakeGcs) -> None:
    store = store_of(gcs, "gs://models/m")
    item = store.list().find("model.safetensors")
    assert item is not None
    reader = store.open_reader()
    for start, length in [(0, 1), (12_345, 200_000), (len(DATA) - 1, 1), (5, 0)]:
        assert read_range(reader, item, start, length) == DATA[start : start + length]
    assert read_whole(reader, item) == DATA


def test_a_look_up_needs_no_listing_and_leaves_its_connection_open(gcs: FakeGcs) -> None:
    store = store_of(gcs, "gs://models/m")
    found = store.look_up("model.safetensors", 100)
    assert found.prefix == DATA[:100]
    assert found.item == store.list().find("model.safetensors")
    assert read_whole(store.open_reader(), found.item) == DATA


def test_an_empty_object_is_looked_up(gcs: FakeGcs) -> None:
    found = store_of(gcs, "gs://models/m").look_up("empty", 8)
    assert (found.item.size_bytes, found.prefix) == (0, b"")


def test_the_store_keeps_a_checksum_of_the_whole_object(gcs: FakeGcs) -> None:
    store = store_of(gcs, "gs://models/m")
    found = store.look_up("model.safetensors", 1).item
    told = checksum_of(store.open_reader(), found)
    assert isinstance(told, StoredChecksum)
    assert (told.crc.name, told.value) == ("crc32c", told.crc.of([DATA]))
    other = store_of(gcs, "gs://models/m")  # which has listed nothing, so that it has to ask
    assert checksum_of(other.open_reader(), found) == told


@pytest.mark.parametrize("name", STRANGE)
def test_strange_keys_are_listed_looked_up_and_read(name: str, gcs: FakeGcs) -> None:
    content = name.encode()
    gcs.put("models", f"strange/{name}", content)
    store = store_of(gcs, "gs://models/strange")
    item = store.list().find(name)
    assert item is not None
    assert read_whole(store.open_reader(), item) == content
    assert store.look_up(name, 100).item == item


def test_a_prefix_with_strange_characters_is_one(gcs: FakeGcs) -> None:
    gcs.put("models", "team ü/a+b&c=d/x", b"x")
    assert store_of(gcs, "gs://models/team ü/a+b&c=d").list().objects[0].name == "x"


def test_an_overwritten_object_is_told_as_changed_with_both_generations(gcs: FakeGcs) -> None:
    gcs.put("models", "changing/x", b"first")
    store = store_of(gcs, "gs://models/changing")
    (item,) = store.list().objects
    gcs.put("models", "changing/x", b"second!")
    with pytest.raises(
        Changed, match=rf"generation {item.version} of 5 bytes; now generation \d+ of 7 bytes"
    ):
        read_whole(store.open_reader(), item)


def test_a_removed_object_is_told_as_changed(gcs: FakeGcs) -> None:
    gcs.put("models", "going/x", b"here")
    store = store_of(gcs, "gs://models/going")
    (item,) = store.list().objects
    gcs.ask("DELETE", "/storage/v1/b/models/o/going%2Fx")
    with pytest.raises(Changed, match="removed after it was listed"):
        read_whole(store.open_reader(), item)


def test_a_bucket_that_is_not_there(gcs: FakeGcs) -> None:
    with pytest.raises(NotFound, match=f"no such bucket at {gcs.url}") as caught:
        store_of(gcs, "gs://nowhere/m").list()
    assert caught.value.status == 404
    with pytest.raises(NotFound):
        list(list_below(store_of(gcs, "gs://nowhere/m")))


def test_a_prefix_under_which_nothing_lies_is_told_with_what_lies_around(gcs: FakeGcs) -> None:
    with pytest.raises(NotFound, match=r"In gs://models/m/sub there is: deep/\."):
        store_of(gcs, "gs://models/m/sub/dep").list()
    with pytest.raises(NotFound, match="gs://void is empty"):
        store_of(gcs, "gs://void/m").list()


def test_an_objects_name_is_not_a_folder(gcs: FakeGcs) -> None:
    with pytest.raises(NotFound, match="one object, not a folder") as caught:
        store_of(gcs, "gs://models/m/empty").list()
    assert caught.value.remedy == "Give the folder: gs://models/m."


@pytest.mark.parametrize("name", ["absent", "sub"])
def test_an_object_that_is_not_there(name: str, gcs: FakeGcs) -> None:
    with pytest.raises(NotFound, match=f"gs://models/m/{name}: There is no such object"):
        store_of(gcs, "gs://models/m").look_up(name, 8)


@pytest.mark.parametrize("name", ["../m/empty", "", "a//b", "."])
def test_a_name_that_leads_out_of_the_prefix_is_refused(name: str, gcs: FakeGcs) -> None:
    with pytest.raises(NotFound, match="No object can have the name"):
        store_of(gcs, "gs://models/m").look_up(name, 8)


def test_the_environment_leads_to_the_store(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    store = open_store(parse_source("GS://models/m/"))
    assert store.identity == f"{gcs.url}/models/m"
    assert describe(store) == (
        Setting("endpoint", gcs.url, "STORAGE_EMULATOR_HOST"),
        Setting("principal", "anonymous", "STORAGE_EMULATOR_HOST"),
    )


def test_a_private_ca_is_believed_where_it_is_named(tmp_path: Path, loopback_tls: Tls) -> None:
    (tmp_path / "buckets").mkdir()
    with fake_gcs(tmp_path / "buckets", loopback_tls) as gcs:
        gcs.make_bucket("models")
        gcs.put("models", "m/x", DATA)
        store = store_of(gcs, "gs://models/m")
        assert read_whole(store.open_reader(), store.list().objects[0]) == DATA
        unknown = GcsStore(store.source, resolve_gcs_settings({"STORAGE_EMULATOR_HOST": gcs.url}))
        with pytest.raises(TlsError, match="not trusted"):
            unknown.list()
