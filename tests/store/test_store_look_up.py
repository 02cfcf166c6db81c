"""One object by one read of its first bytes, without a listing: size, version and these bytes."""

import os
import random
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.uri import parse_source
from headrace.store.base import read_range, read_whole
from headrace.store.errors import AccessDenied, Changed, NotFound, StoreError, TransientError, Unsupported
from headrace.store.local.store import LocalStore
from headrace.store.web.settings import resolve_web_settings
from headrace.store.web.store import HttpStore
from tests.faults import server as faults
from tests.faults.opening import only_object, store_of
from tests.faults.server import Behaviour, FaultServer, Stored, fault_server

KEY = "model/model.safetensors"
NAME = "model.safetensors"
DATA = random.Random(3).randbytes(30_000)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def test_it_is_what_the_listing_says_for_one_request(server: FaultServer) -> None:
    store = store_of(server)
    found = store.look_up(NAME, 100)
    assert server.ranges == [(0, 99)]
    assert "if-match" not in server.log[0].headers
    assert found.prefix == DATA[:100]
    assert found.item == only_object(store)


def test_the_next_reader_goes_on_with_its_connection(server: FaultServer) -> None:
    store = store_of(server)
    item = store.look_up(NAME, 100).item
    assert read_range(store.open_reader(), item, 5, 10) == DATA[5:15]
    assert {asked.connection for asked in server.log} == {0}


def test_two_readers_do_not_share_what_one_look_up_left(server: FaultServer) -> None:
    store = store_of(server)
    item = store.look_up(NAME, 100).item
    readers = [store.open_reader(), store.open_reader()]
    for reader in readers:
        read_range(reader, item, 0, 10)
    assert {asked.connection for asked in server.log} == {0, 1}


def test_what_a_look_up_left_open_is_closed_with_the_store(server: FaultServer) -> None:
    store = store_of(server)
    store.look_up(NAME, 100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)  # what a socket says that nobody closes
        del store
    server.wait_until_closed()
    assert caught == []


def test_an_object_shorter_than_the_first_bytes_comes_whole(server: FaultServer) -> None:
    found = store_of(server).look_up(NAME, len(DATA) + 1)
    assert (found.item.size_bytes, found.prefix) == (len(DATA), DATA)


def test_an_empty_object_is_found(server: FaultServer) -> None:
    server.objects[KEY] = Stored.of(b"")
    found = store_of(server).look_up(NAME, 100)
    assert (found.item.size_bytes, found.prefix) == (0, b"")
    assert found.item.version == server.objects[KEY].etag.strip('"')


FINE: dict[str, Behaviour] = {
    "the whole object": faults.whole,
    "chunked": faults.chunked(33),
    "trickled": faults.trickle(7),
}


@pytest.mark.parametrize("name", FINE)
def test_an_unusual_but_right_answer_is_taken(name: str, server: FaultServer) -> None:
    store = store_of(server)
    server.play(FINE[name])
    found = store.look_up(NAME, 100)
    assert (found.item.size_bytes, found.prefix) == (len(DATA), DATA[:100])
    assert read_whole(store.open_reader(), found.item) == DATA


def chunked_whole(exchange: faults.Exchange) -> None:
    exchange.head(status=200, Content_Length=None, Transfer_Encoding="chunked")
    body = exchange.stored.data
    exchange.send(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")


def test_a_whole_object_of_untold_length_is_taken_if_it_is_short(server: FaultServer) -> None:
    server.objects[KEY] = Stored.of(b"short")
    server.play(chunked_whole)
    found = store_of(server).look_up(NAME, 100)
    assert (found.item.size_bytes, found.prefix) == (5, b"short")


REFUSED: dict[str, tuple[Behaviour, type[StoreError], str]] = {
    "removed": (faults.error(404, "NoSuchKey"), NotFound, "no such object"),
    "403": (faults.error(403, "AccessDenied"), AccessDenied, "may not do this"),
    "500": (faults.error(500, "InternalError"), TransientError, "The store failed"),
    "short body": (faults.short_body(50), TransientError, "connection closed"),
    "chunked, short": (faults.chunked(10, stop_after=50), TransientError, "ended after 50"),
    "chunked, long": (faults.chunked(10, extra=b"?"), Unsupported, "longer than"),
    "no Content-Range": (faults.content_range(None), Unsupported, "no valid Content-Range"),
    "shifted": (faults.shifted(1), Unsupported, "1-100 were sent"),
    "longer": (faults.longer_body(1), Unsupported, "the body has 101 bytes"),
    "another range": (faults.content_range("bytes 0-98/30000"), Unsupported, "0-98 were sent"),
    "gzip": (faults.encoded("gzip"), Unsupported, "without Content-Encoding"),
    "of untold length": (chunked_whole, Unsupported, "does not say how large"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_answer_is_a_typed_error_and_the_next_look_up_is_right(
    name: str, server: FaultServer
) -> None:
    behaviour, kind, said = REFUSED[name]
    store = store_of(server)
    server.play(behaviour)
    with pytest.raises(kind, match=said):
        store.look_up(NAME, 100)
    assert store.look_up(NAME, 100).prefix == DATA[:100]


def test_what_was_replaced_after_the_look_up_is_never_mixed_with_it(server: FaultServer) -> None:
    store = store_of(server)
    item = store.look_up(NAME, 100).item
    server.objects[KEY] = Stored.of(DATA[::-1])
    with pytest.raises(Changed):
        read_whole(store.open_reader(), item)


@pytest.mark.parametrize("name", ["", "..", "a/../b", "a//b", "/a", "a/.", "a\0b"])
def test_a_name_that_leads_out_of_the_prefix_is_never_asked_for(
    name: str, server: FaultServer, tmp_path: Path
) -> None:
    for store in (store_of(server), LocalStore(parse_source(str(tmp_path)))):
        with pytest.raises(NotFound, match="No object can have the name"):
            store.look_up(name, 1)
    assert server.log == []


@pytest.mark.parametrize("kind", ["s3", "web"])
def test_a_server_that_says_nothing_is_given_up_sooner_than_in_the_middle_of_a_load(
    kind: str, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"headrace.store.{kind}.store.FIRST_STALL_TIMEOUT_S", 0.2)
    source = parse_source(f"{server.url}/bucket/model")
    store = (
        HttpStore(source, resolve_web_settings({}), stall_timeout_s=0.5)
        if kind == "web"
        else store_of(server, stall_timeout_s=0.5)
    )
    item = store.look_up(NAME, 10).item
    server.play(faults.stall_before_head)
    with pytest.raises(TransientError, match=r"No byte came for 0\.2 s"):
        store.look_up(NAME, 10)
    store.look_up(NAME, 10)
    server.play(faults.stall(10))
    with pytest.raises(TransientError, match=r"No byte came for 0\.5 s"):  # by the reader that is left
        read_whole(store.open_reader(), item)


# ---- folders


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    (tmp_path / NAME).write_bytes(DATA)
    (tmp_path / "empty").touch()
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return LocalStore(parse_source(str(tmp_path)))


def test_a_file_is_what_the_listing_says(folder: LocalStore) -> None:
    found = folder.look_up(NAME, 100)
    assert found.item == folder.list().find(NAME)
    assert found.prefix == DATA[:100]
    assert read_whole(folder.open_reader(), found.item) == DATA


def test_an_empty_file_is_found(folder: LocalStore) -> None:
    found = folder.look_up("empty", 100)
    assert (found.item.size_bytes, found.prefix) == (0, b"")


@pytest.mark.parametrize("name", ["gone", "sub", "pipe", "socket"])
def test_what_is_no_file_is_not_found(name: str, folder: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.source.prefix)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(NotFound):
            folder.look_up(name, 100)
