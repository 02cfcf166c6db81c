"""Objects of several places behind one store: whose bytes come, under which name, and an end from another thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import Store, read_whole
from headrace.store.errors import StoreError
from headrace.store.local.store import LocalStore
from headrace.stream.library.several_stores import SeveralStores
from tests.faults.opening import store_of
from tests.faults.server import FaultServer, fault_server


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({"model/x": b"of the store"}) as running:
        yield running


@pytest.fixture
def objects(server: FaultServer, tmp_path: Path) -> list[tuple[Store, ObjectInfo]]:
    """Of one name, in a bucket and in a folder."""
    (tmp_path / "x").write_bytes(b"of the folder")
    stores: list[Store] = [store_of(server), LocalStore(parse_source(str(tmp_path)))]
    return [(store, store.list().objects[0]) for store in stores]


def test_each_object_is_read_where_it_lies(objects: list[tuple[Store, ObjectInfo]], tmp_path: Path) -> None:
    several = SeveralStores(objects)
    reader = several.open_reader()
    assert [read_whole(reader, item) for item in several.items] == [b"of the store", b"of the folder"]
    reader.close()
    assert [several.source.uri_of(item.name) for item in several.items] == [
        "s3://bucket/model/x",
        str(tmp_path / "x"),
    ]
    assert sorted(several.list().objects, key=lambda item: item.name) == sorted(
        several.items, key=lambda item: item.name
    )


def test_an_object_is_looked_up_where_it_lies(objects: list[tuple[Store, ObjectInfo]]) -> None:
    several = SeveralStores(objects)
    for item, prefix in zip(several.items, (b"of the store", b"of the folder"), strict=True):
        found = several.look_up(item.name, 100)
        assert (found.item, found.prefix) == (item, prefix)


def test_a_reader_that_was_aborted_begins_nothing_more(
    server: FaultServer, objects: list[tuple[Store, ObjectInfo]]
) -> None:
    several = SeveralStores(objects)
    reader = several.open_reader()
    reader.abort()
    with pytest.raises(StoreError):
        read_whole(reader, several.items[0])
    reader.close()
    assert server.ranges == []
