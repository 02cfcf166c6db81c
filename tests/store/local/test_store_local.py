"""Folders: what is listed, and files that change under a read."""

import os
from pathlib import Path

import pytest

from headrace.source.objects import ObjectInfo
from headrace.source.uri import ModelSource, parse_source
from headrace.store.base import Target, open_store, read_range, read_whole
from headrace.store.errors import Changed, NotFound, TransientError, Truncated
from headrace.store.local.store import LocalReader, LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.bin").write_bytes(bytes(range(100)))
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / "sub").mkdir()
    return tmp_path


def store_of(folder: Path) -> LocalStore:
    return LocalStore(parse_source(str(folder)))


def item_of(folder: Path, name: str = "b.bin") -> ObjectInfo:
    item = store_of(folder).list().find(name)
    assert item is not None
    return item


def test_files_and_folders_are_listed_by_name(folder: Path) -> None:
    listing = store_of(folder).list()
    assert [(item.name, item.size_bytes) for item in listing.objects] == [("a.json", 2), ("b.bin", 100)]
    assert listing.folders == ("sub",)


def test_a_linked_file_is_listed_with_its_targets_size(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder / "b.bin")
    assert item_of(folder, "link.bin").size_bytes == 100


def test_links_that_lead_nowhere_are_told_apart_from_files(folder: Path) -> None:
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "circle").symlink_to(folder / "circle")
    listing = store_of(folder).list()
    assert listing.broken_links == ("circle", "dangling")
    assert [item.name for item in listing.objects] == ["a.json", "b.bin"]


def test_a_link_to_what_may_not_be_looked_at_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever runs the tests may be root, to whom nothing is forbidden: a name that is too long fails alike.
    (folder / "model.safetensors").symlink_to("x" * 300)
    with pytest.raises(TransientError, match=r"/model\.safetensors: .*name too long"):
        store_of(folder).list()


def test_a_name_that_is_not_utf8_can_be_told_and_its_file_read(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/\xff.bin", "wb") as file:
        file.write(b"content")
    item = item_of(folder, "\N{REPLACEMENT CHARACTER}.bin")
    assert read_whole(LocalReader(), item) == b"content"


def test_a_range_is_read_from_where_it_was_left(folder: Path) -> None:
    target = Target([memoryview(bytearray(20))], received=5)
    LocalReader().read_into(item_of(folder), 10, target)
    assert bytes(target.views[0]) == bytes(5) + bytes(range(15, 30))


def test_several_files_are_read_in_turn(folder: Path) -> None:
    reader = LocalReader()
    for _ in range(2):
        assert read_range(reader, item_of(folder), 98, 2) == b"bc"
        assert read_whole(reader, item_of(folder, "a.json")) == b"{}"
    reader.close()


def test_a_file_that_was_replaced_after_the_listing_is_not_read(folder: Path) -> None:
    item = item_of(folder)
    (folder / "new").write_bytes(bytes(100))
    (folder / "new").rename(folder / "b.bin")
    with pytest.raises(Changed, match="replaced after it was listed"):
        read_whole(LocalReader(), item)


def test_a_file_that_is_rewritten_during_the_load_is_noticed(folder: Path) -> None:
    item, reader = item_of(folder), LocalReader()
    read_range(reader, item, 0, 10)
    with open(folder / "b.bin", "r+b") as file:
        file.write(b"??")
    os.utime(folder / "b.bin", ns=(1, 1))
    with pytest.raises(Changed, match="rewritten while it was read"):
        read_range(reader, item, 0, 10)


def test_a_file_that_is_replaced_during_the_load_is_read_on_as_it_was(folder: Path) -> None:
    item, reader = item_of(folder), LocalReader()
    first = read_range(reader, item, 0, 50)
    (folder / "new").write_bytes(bytes(100))
    (folder / "new").rename(folder / "b.bin")
    assert first + read_range(reader, item, 50, 50) == bytes(range(100))


def test_a_file_that_is_cut_off_during_the_load_is_noticed(folder: Path) -> None:
    item, reader = item_of(folder), LocalReader()
    read_range(reader, item, 0, 10)
    os.truncate(folder / "b.bin", 60)
    with pytest.raises(Truncated, match="ended after 60 bytes"):
        read_range(reader, item, 50, 50)


def test_a_file_that_was_replaced_and_listed_anew_is_read_by_the_same_reader(folder: Path) -> None:
    reader = LocalReader()
    read_range(reader, item_of(folder), 0, 50)
    (folder / "new").write_bytes(bytes(100))
    (folder / "new").rename(folder / "b.bin")
    assert read_whole(reader, item_of(folder)) == bytes(100)


def test_a_file_that_is_gone_is_not_found(folder: Path) -> None:
    item = item_of(folder)
    (folder / "b.bin").unlink()
    with pytest.raises(NotFound):
        read_whole(LocalReader(), item)


def test_a_folder_that_is_gone_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        LocalStore(ModelSource("file", "", str(tmp_path / "gone"), "gone")).list()


def test_closing_a_reader_gives_its_descriptor_back(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    reader = LocalReader()
    read_whole(reader, item_of(folder))
    reader.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_folders_store_is_found_by_its_source(folder: Path) -> None:
    store = open_store(parse_source(str(folder)))
    assert isinstance(store, LocalStore)
    assert store.identity == str(folder)
