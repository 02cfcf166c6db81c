"""A change names the object and both versions: the listed one and the one that is there now."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import read_whole
from headrace.store.errors import Changed
from headrace.store.local.store import LocalStore
from headrace.store.s3.store import S3Store
from headrace.store.versions import utc_text, version_text
from tests.faults import server as faults
from tests.faults.opening import store_of
from tests.faults.server import FaultServer, Stored, fault_server


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        running.objects["model/a"] = Stored(b"content", '"old"')
        yield running


@pytest.fixture
def store(server: FaultServer) -> S3Store:
    return store_of(server)


def change_of(store: S3Store, item: ObjectInfo) -> str:
    with pytest.raises(Changed) as caught:
        read_whole(store.open_reader(), item)
    assert caught.value.uri == "s3://bucket/model/a"
    return caught.value.cause


def test_a_replaced_object_is_told_with_size_tag_and_time_of_both(
    server: FaultServer, store: S3Store
) -> None:
    (item,) = store.list().objects
    server.objects["model/a"] = Stored(b"other content", '"new"')
    assert change_of(store, item) == (
        "The object was replaced after it was listed. Listed: 7 bytes, ETag old, written 2026-01-02T03:04:05Z; "
        "now 13 bytes, ETag new, written 2026-01-02T03:04:05Z."
    )


def test_an_object_that_is_gone_by_the_second_look_is_nothing_now(
    server: FaultServer, store: S3Store
) -> None:
    (item,) = store.list().objects

    def remove(exchange: faults.Exchange) -> None:
        del server.objects["model/a"]
        exchange.send(faults.error_answer(412, "PreconditionFailed"))

    server.play(remove)
    assert change_of(store, item).endswith("ETag old, written 2026-01-02T03:04:05Z; now nothing.")


def test_a_second_look_that_fails_hides_no_change(server: FaultServer, store: S3Store) -> None:
    (item,) = store.list().objects
    server.objects["model/a"] = Stored(b"other content", '"new"')
    server.refuse = lambda asked: faults.error_answer(403) if asked.method == "HEAD" else None
    assert change_of(store, item).endswith("; now something else.")


def test_a_removed_object_is_told_with_the_version_that_was_listed(
    server: FaultServer, store: S3Store
) -> None:
    (item,) = store.list().objects
    server.objects.clear()
    assert change_of(store, item) == (
        "The object was removed after it was listed. Listed: 7 bytes, ETag old, written 2026-01-02T03:04:05Z; "
        "now nothing."
    )


def test_a_replaced_file_is_told_with_size_and_time_of_both(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"content")
    os.utime(file, ns=(0, 1_500_000_000))
    store = LocalStore(parse_source(str(tmp_path)))
    (item,) = store.list().objects
    file.write_bytes(b"other content")
    os.utime(file, ns=(0, 1_600_000_000))
    with pytest.raises(Changed) as caught:
        read_whole(store.open_reader(), item)
    assert caught.value.cause == (
        "The file was replaced after it was listed. Listed: 7 bytes, written 1970-01-01T00:00:01.500000Z; "
        "now 13 bytes, written 1970-01-01T00:00:01.600000Z."
    )


def test_a_version_of_which_nothing_is_known_is_something_else() -> None:
    assert version_text(None, "", None) == "something else"


def test_a_time_beyond_every_calendar_stays_a_number() -> None:
    assert utc_text(1e15) == "1000000000000000 s after 1970"
