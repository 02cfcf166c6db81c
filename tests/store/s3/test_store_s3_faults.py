"""What S3Store makes of faults between a store and us that the tests of one read leave out."""

import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.store.base import read_range, read_whole
from headrace.store.errors import BadEndpoint, Changed, StoreError, Throttled, Truncated, Unreachable
from headrace.store.s3.store import S3Store
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.transfer import Transfer
from tests.faults import server as faults
from tests.faults.opening import only_object, store_of
from tests.faults.server import Exchange, FaultServer, Stored, fault_server

KEY = "model/model.safetensors"
DATA = random.Random(8).randbytes(100_000)
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def load(store: S3Store, *, concurrency: int = 2) -> bytes:
    memory = bytearray(len(DATA))
    plan = plan_reads([Placement(0, 0, len(DATA), 0, 0, "U8", "U8")], 10_000)
    item = only_object(store)
    Transfer(plan, [item], store, memoryview(memory), concurrency=concurrency, policy=AT_ONCE).wait()
    return bytes(memory)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_that_names_no_region_is_told_and_not_followed(status: int, server: FaultServer) -> None:
    store = store_of(server)
    item = only_object(store)
    with fault_server({}) as elsewhere:
        server.play(faults.error(status, Location=f"{elsewhere.url}/x?signature=hush"))
        with pytest.raises(BadEndpoint, match=f"redirects to {elsewhere.url}, ") as caught:
            read_whole(store.open_reader(), item)
        assert elsewhere.log == []  # a signed request is for nobody else
    assert "hush" not in str(caught.value)


def test_a_date_to_wait_for_counts_from_the_stores_own_clock(server: FaultServer) -> None:
    store = store_of(server)
    item = only_object(store)
    dates = {"Date": "Fri, 02 Jan 2026 03:04:05 GMT", "Retry_After": "Fri, 02 Jan 2026 03:04:15 GMT"}
    server.play(faults.error(503, "SlowDown", **dates))
    with pytest.raises(Throttled) as caught:
        read_whole(store.open_reader(), item)
    assert caught.value.retry_after_s == 10.0


def test_a_body_that_is_sent_twice_is_taken_once(server: FaultServer) -> None:
    store = store_of(server)
    item = only_object(store)
    reader = store.open_reader()

    def twice(exchange: Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted + exchange.wanted)

    server.play(twice)
    assert read_range(reader, item, 100, 5_000) == DATA[100:5_100]
    assert read_range(reader, item, 5_100, 5_000) == DATA[5_100:10_100]


def test_a_slow_first_byte_is_waited_for(server: FaultServer) -> None:
    store = store_of(server, stall_timeout_s=3600)
    item = only_object(store)
    released = threading.Event()

    def late(exchange: Exchange) -> None:
        exchange.server.stalled.put(exchange.asked)
        released.wait()
        faults.honest(exchange)

    server.play(late)
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(read_whole(store.open_reader(), item)))
    thread.start()
    server.stalled.get()
    released.set()
    thread.join()
    assert read == [DATA]


def test_a_store_that_closes_every_connection_after_one_answer_is_read_to_the_end(
    server: FaultServer,
) -> None:
    server.play(*[faults.close_after] * 20)
    assert load(store_of(server)) == DATA


@pytest.mark.parametrize(
    ("change", "kind"),
    [("truncated", Changed), ("grown", Changed), ("removed", Changed), ("emptied", (Changed, Truncated))],
)
def test_an_object_that_changes_during_a_load_ends_it(
    change: str, kind: type[StoreError], server: FaultServer
) -> None:
    new = {"truncated": DATA[:-1], "grown": DATA + b"+", "emptied": b""}.get(change)

    def behave(exchange: Exchange) -> None:
        faults.honest(exchange)
        if new is None:
            exchange.server.objects.pop(KEY, None)
        else:  # under the old ETag, as by a store that ignores conditions
            exchange.server.objects[KEY] = Stored(new, exchange.stored.etag)

    server.play(behave)
    with pytest.raises(kind, match="model"):
        load(store_of(server), concurrency=1)


@pytest.fixture
def names_fail(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many name look-ups fail from now on, as they do when a name server is away for a moment."""
    left = [0]
    look_up = socket.getaddrinfo

    def failing(*arguments: Any, **keywords: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return look_up(*arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", failing)
    return left


def breaking(names_fail: list[int], count: int) -> faults.Behaviour:
    """The connection ends, and then the store's name cannot be found for some time."""

    def behave(exchange: Exchange) -> None:
        names_fail[0] = count
        exchange.keep = False

    return behave


def test_a_name_that_cannot_be_found_for_a_moment_does_not_end_a_load(
    server: FaultServer, names_fail: list[int]
) -> None:
    server.play(faults.honest, breaking(names_fail, 2))
    assert load(store_of(server), concurrency=1) == DATA
    assert names_fail == [0]


def test_a_name_that_cannot_be_found_any_more_ends_a_load_with_the_reason(
    server: FaultServer, names_fail: list[int]
) -> None:
    server.play(faults.honest, breaking(names_fail, 1_000))
    with pytest.raises(Unreachable, match="Temporary failure in name resolution"):
        load(store_of(server), concurrency=1)
