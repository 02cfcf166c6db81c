"""A local file as memory: only for who asks for it, and only on a local disk."""

import gc
import os
from pathlib import Path

import pytest

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store import mapped
from headrace.store.errors import Changed, NotFound, Unsupported
from headrace.store.local.store import LocalStore
from headrace.store.mapped import file_system_kind, map_object

DATA = bytes(range(256)) * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(DATA)
    return path


def item_of(file: Path) -> ObjectInfo:
    return LocalStore(parse_source(str(file.parent))).look_up(file.name, 1).item


def test_the_mapping_holds_the_files_bytes(file: Path) -> None:
    assert map_object(item_of(file)) == DATA


def test_what_is_written_to_the_mapping_does_not_reach_the_file(file: Path) -> None:
    view = map_object(item_of(file))
    view[:4] = b"mine"
    assert view[:5] == b"mine\x04"
    assert file.read_bytes() == DATA


def test_a_slice_keeps_the_mapping_alive_and_nothing_else_does(file: Path) -> None:
    view = map_object(item_of(file))[100:200]
    gc.collect()
    assert view == DATA[100:200]
    assert str(file) in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_a_file_that_is_replaced_by_a_new_one_stays_as_it_was_mapped(file: Path) -> None:
    view = map_object(item_of(file))
    (file.parent / "new").write_bytes(b"?" * len(DATA))
    (file.parent / "new").rename(file)
    assert view == DATA


def test_no_descriptor_stays_open(file: Path) -> None:
    item = item_of(file)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    view = map_object(item)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208 - the mapping may keep a copy
    del view


def test_an_empty_file_is_empty_memory(file: Path) -> None:
    file.write_bytes(b"")
    assert map_object(item_of(file)) == b""


@pytest.mark.parametrize("change", [b"?" * len(DATA), DATA[:-1], DATA + b"+", b""])
def test_a_file_that_changed_since_it_was_listed_is_not_mapped(change: bytes, file: Path) -> None:
    item = item_of(file)
    file.write_bytes(change)
    os.utime(file, ns=(1, 1))
    with pytest.raises(Changed, match="after it was listed"):
        map_object(item)


def test_a_file_that_is_gone_is_not_found(file: Path) -> None:
    item = item_of(file)
    file.unlink()
    with pytest.raises(NotFound):
        map_object(item)


def test_the_kind_of_a_known_file_system_is_read() -> None:
    descriptor = os.open("/proc/self/stat", os.O_RDONLY)
    try:
        assert file_system_kind(descriptor) == 0x9FA0  # PROC_SUPER_MAGIC
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("kind", "name"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x65735546, "FUSE")])
def test_a_network_file_system_is_refused_by_name(
    kind: int, name: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None is at hand: a fault that needs a mount of its own.
    monkeypatch.setattr(mapped, "file_system_kind", lambda descriptor: kind)
    with pytest.raises(Unsupported, match=f"lies on {name}") as caught:
        map_object(item_of(file))
    assert "copy it to a local disk" in caught.value.remedy
