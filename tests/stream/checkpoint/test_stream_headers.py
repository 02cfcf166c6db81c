"""Fetching headers and small files side by side: how many reads it takes, and what becomes of errors."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import Reader, open_store
from headrace.store.errors import AccessDenied, Throttled, TransientError, Unreachable
from headrace.stream.checkpoint.header import BadHeader
from headrace.stream.checkpoint.headers import (
    SPECULATIVE_BYTES,
    ReaderPool,
    fetch_file,
    fetch_shard,
    list_model,
)
from headrace.stream.retry import RetryPolicy
from tests.faults import server as faults
from tests.faults.opening import one_byte, only_object, store_of
from tests.faults.server import FaultServer, Stored, fault_server

KEY = "model/model.safetensors"
WHERE = f"s3://bucket/{KEY}"
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)
pytestmark = pytest.mark.timeout(60)


def safetensors_file(data_bytes: int, padding: int = 0) -> bytes:
    header = json.dumps(
        {"a": {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}}
    ).encode()
    header += b" " * padding
    return len(header).to_bytes(8, "little") + header + bytes(data_bytes)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        yield running


def fetch(server: FaultServer, file: bytes) -> int:
    """Store the file, fetch its header; where its tensor ends."""
    server.objects[KEY] = Stored.of(file)
    store = store_of(server)
    return fetch_shard(store.open_reader(), only_object(store), WHERE).tensors["a"].end


def test_a_header_takes_one_read(server: FaultServer) -> None:
    file = safetensors_file(SPECULATIVE_BYTES * 2)
    assert fetch(server, file) == len(file)
    assert server.ranges == [(0, SPECULATIVE_BYTES - 1)]


def test_no_more_is_read_of_a_small_file_than_there_is(server: FaultServer) -> None:
    file = safetensors_file(100)
    assert fetch(server, file) == len(file)
    assert server.ranges == [(0, len(file) - 1)]


def test_a_very_long_header_takes_a_second_read_of_the_rest(server: FaultServer) -> None:
    file = safetensors_file(10, padding=SPECULATIVE_BYTES)
    assert fetch(server, file) == len(file)
    assert server.ranges == [(0, SPECULATIVE_BYTES - 1), (SPECULATIVE_BYTES, len(file) - 11)]


def test_an_empty_object_is_no_safetensors(server: FaultServer) -> None:
    with pytest.raises(BadHeader, match="too few for a safetensors header"):
        fetch(server, b"")


def test_a_truncated_shard_is_told_from_its_header_alone(server: FaultServer) -> None:
    with pytest.raises(BadHeader, match="cut off"):
        fetch(server, safetensors_file(SPECULATIVE_BYTES * 2)[:-1])
    assert len(server.ranges) == 1


def pool_with(server: FaultServer, count: int, size: int) -> tuple[ReaderPool, tuple[ObjectInfo, ...]]:
    for number in range(count):
        server.objects[f"model/{number}"] = Stored.of(f"content {number}".encode())
    store = store_of(server)
    return ReaderPool(store, size, policy=AT_ONCE), store.list().objects


def test_a_listing_that_fails_in_passing_is_tried_again(server: FaultServer) -> None:
    _, items = pool_with(server, 2, 1)
    server.list_script.extend(
        [faults.error_answer(503, "SlowDown", Retry_After="3"), faults.error_answer(500)]
    )
    waited: list[float] = []
    assert list_model(store_of(server), policy=AT_ONCE, wait=waited.append).objects == items
    assert waited == [3.0, 0.0]


def test_a_listing_that_is_refused_is_not_tried_again(server: FaultServer) -> None:
    server.list_script.append(faults.error_answer(403, "AccessDenied"))
    with pytest.raises(AccessDenied):
        list_model(store_of(server))
    assert len(server.log) == 1


def test_an_endpoint_that_is_not_there_is_told_at_the_first_listing(server: FaultServer) -> None:
    server.stop()
    waited: list[float] = []
    with pytest.raises(Unreachable):
        list_model(store_of(server), wait=waited.append)
    assert waited == []


def test_every_item_gets_its_own_result(server: FaultServer) -> None:
    pool, items = pool_with(server, 12, 3)
    results = [wait() for wait in pool.map(fetch_file, items)]
    assert results == [server.objects[item.key].data for item in items]


def test_a_passing_fault_is_tried_again_and_a_final_one_told_to_who_waits_for_it(server: FaultServer) -> None:
    pool, items = pool_with(server, 3, 1)
    server.play(faults.error(503), faults.honest, faults.error(403, "AccessDenied"))
    first, second, third = pool.map(fetch_file, items)
    assert first() == b"content 0"
    with pytest.raises(AccessDenied):
        second()
    assert third() == b"content 2"


def test_a_fault_that_does_not_pass_is_given_up(server: FaultServer) -> None:
    pool, items = pool_with(server, 1, 1)
    server.play(*[faults.error(503)] * 4)
    with pytest.raises(Throttled):
        pool.map(fetch_file, items)[0]()


def test_connections_are_handed_on_open(server: FaultServer) -> None:
    pool, items = pool_with(server, 6, 2)
    waits = pool.map(fetch_file, items)
    readers = pool.take_readers()
    assert waits[0]() == b"content 0"
    before = {asked.connection for asked in server.log}
    for reader in readers:
        reader.read_into(items[0], 0, one_byte())
        reader.close()
    assert len(readers) == 2
    assert {asked.connection for asked in server.log} <= before


def test_a_pool_that_nobody_used_hands_on_nothing(server: FaultServer) -> None:
    pool, _ = pool_with(server, 1, 4)
    assert pool.take_readers() == []


def test_a_read_that_stalls_does_not_hold_the_process(server: FaultServer) -> None:
    pool, items = pool_with(server, 1, 1)
    before = set(threading.enumerate())
    server.play(faults.stall_before_head)
    pool.map(fetch_file, items)
    server.stalled.get()
    started = [thread for thread in set(threading.enumerate()) - before if "small-reads" in thread.name]
    assert [thread.daemon for thread in started] == [True]


def test_work_of_several_kinds_shares_the_pool(server: FaultServer) -> None:
    pool, items = pool_with(server, 2, 2)
    server.objects["model/x.safetensors"] = Stored.of(safetensors_file(5))
    shard = next(item for item in store_of(server).list().objects if item.name == "x.safetensors")

    def length(reader: Reader, item: ObjectInfo) -> int:
        return len(fetch_file(reader, item))

    lengths = pool.map(length, items)
    (header,) = pool.map(partial(fetch_shard, where=WHERE), [shard])
    assert [wait() for wait in lengths] == [9, 9]
    assert header().tensors["a"].shape == (5,)


def test_an_interrupt_while_a_thread_is_started_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        honest(thread)
        raise KeyboardInterrupt

    store = open_store(parse_source(str(tmp_path)))
    pool = ReaderPool(store, 1)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.map(lambda reader, item: None, [ObjectInfo("x", "x", 0, "")])
    (thread,) = pool._threads
    pool.abort()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_whoever_waits_to_try_again_ends_with_the_pool(tmp_path: Path) -> None:
    store = open_store(parse_source(str(tmp_path)))
    pool = ReaderPool(store, 1, policy=RetryPolicy(attempts=9, first_s=3600.0, longest_s=3600.0))
    failed = threading.Event()

    def fail(_reader: Reader, _item: ObjectInfo) -> None:
        failed.set()
        raise TransientError("x", "It fails.")

    pool.map(fail, [ObjectInfo("x", "x", 0, "")])
    failed.wait()
    (thread,) = pool._threads
    pool.abort(wait_s=30.0)
    assert not thread.is_alive()
