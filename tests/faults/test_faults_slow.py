"""A transfer from stores that are slow, refuse or trickle: pace, tail, least rate, deadline, cap and budget."""

import random
import socket
import ssl
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.demo.identity import Tls
from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.stream.plan import Placement, ReadPlan, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.budget import ConnectionBudget
from headrace.stream.transfer.ledger import Cancelled, DeadlineExceeded
from headrace.stream.transfer.transfer import Transfer
from tests.faults import server as faults
from tests.faults.opening import environment_of, only_object, store_of
from tests.faults.server import FaultServer, Stored, fault_server
from tests.faults.sockets import sockets_to, tcp_table

KEY = "model/model.safetensors"
CHUNK = 20_000
CHUNKS = 40
DATA = random.Random(3).randbytes(CHUNK * CHUNKS)
PATIENT = RetryPolicy(attempts=100, first_s=0.01, longest_s=0.05)
FOR_EVER_S = 3600.0
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def plan_of(times: int = 1) -> ReadPlan:
    """The object read so often, each time as another shard, always to the same place."""
    return plan_reads(
        [Placement(shard, 0, len(DATA), 0, 0, "U8", "U8") for shard in range(times)], chunk_bytes=CHUNK
    )


def start(server: FaultServer, memory: bytearray, *, times: int = 1, **options: object) -> Transfer:
    store = store_of(server, stall_timeout_s=FOR_EVER_S)
    items: list[ObjectInfo] = [only_object(store)] * times
    return Transfer(plan_of(times), items, store, memoryview(memory), policy=PATIENT, **options)  # type: ignore[arg-type]


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fetch-")]


# ---- pace


def test_where_each_connection_is_capped_all_that_are_allowed_are_used(server: FaultServer) -> None:
    full = threading.Event()
    capped = faults.paced(400_000)

    def usual(exchange: faults.Exchange) -> None:
        if server.levels[-1] == 24:
            full.set()
        capped(exchange)

    server.usual = usual
    transfer = start(server, bytearray(len(DATA)), times=1_000, concurrency=24)
    full.wait()
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait()
    assert max(server.levels) == 24


def test_a_store_that_refuses_above_eight_settles_at_eight(server: FaultServer) -> None:
    server.usual = faults.paced(800_000)
    server.bears = 8
    memory = bytearray(len(DATA))
    transfer = start(server, memory, times=24)
    transfer.wait()
    assert memory == DATA
    settled = server.levels[len(server.levels) // 2 : -16]
    assert max(settled) <= 8
    assert statistics.mean(settled) >= 0.8 * 8
    assert server.refused <= 60
    assert transfer.progress().retries == server.refused


def test_two_transfers_share_the_connections_of_the_process(server: FaultServer) -> None:
    server.usual = faults.paced(2_000_000)
    budget = ConnectionBudget(4)
    memories = [bytearray(len(DATA)) for _ in range(3)]
    transfers = [start(server, memory, times=2, budget=budget) for memory in memories]
    for transfer in transfers:
        transfer.wait()
    assert memories == [DATA] * 3
    assert max(server.levels) <= 4


def test_connections_that_are_closed_after_each_answer_are_no_failures(server: FaultServer) -> None:
    server.usual = faults.close_after
    memory = bytearray(len(DATA))
    transfer = start(server, memory)
    transfer.wait()
    assert memory == DATA
    assert transfer.progress().retries == 0
    assert len(server.ranges) == CHUNKS


# ---- tail


def test_a_last_chunk_that_hangs_is_read_by_a_second_connection(server: FaultServer) -> None:
    server.play(*[faults.honest] * (CHUNKS - 1), faults.stall(5_000))
    memory = bytearray(len(DATA))
    transfer = start(server, memory)
    transfer.wait()
    now = transfer.progress()
    assert memory == DATA
    assert (now.hedges, now.retries, now.bytes_done) == (1, 0, len(DATA))
    # Only what was missing.
    assert now.hedged_bytes == CHUNK - 5_000
    assert not names_of_threads()


def test_where_the_first_connection_is_there_before_the_second_its_bytes_count(server: FaultServer) -> None:
    second_asked = threading.Event()

    def stall_second(exchange: faults.Exchange) -> None:
        second_asked.set()
        faults.stall(100)(exchange)

    server.play(*[faults.honest] * (CHUNKS - 1), faults.held(5_000, second_asked), stall_second)
    memory = bytearray(len(DATA))
    transfer = start(server, memory)
    transfer.wait()
    assert memory == DATA
    assert transfer.progress().hedges == 1
    assert not names_of_threads()


def test_a_second_connection_that_fails_harms_nothing(server: FaultServer) -> None:
    failed = threading.Event()

    def fail(exchange: faults.Exchange) -> None:
        faults.error(403, "AccessDenied")(exchange)
        failed.set()

    server.play(*[faults.honest] * (CHUNKS - 1), faults.held(5_000, failed), fail)
    memory = bytearray(len(DATA))
    start(server, memory).wait()
    assert memory == DATA


def test_second_connections_read_no_more_than_a_twentieth_again(server: FaultServer) -> None:
    # Three chunks of forty hang: two of them are a twentieth of all bytes.
    server.play(*[faults.honest] * (CHUNKS - 3), *[faults.stall(0)] * 3)
    transfer = start(server, bytearray(len(DATA)), deadline_s=3.0)
    with pytest.raises(DeadlineExceeded):
        transfer.wait()
    now = transfer.progress()
    assert now.hedges == 2
    assert now.hedged_bytes <= len(DATA) // 20
    assert now.bytes_done == len(DATA) - CHUNK


def test_a_steady_store_is_asked_for_nothing_twice(server: FaultServer) -> None:
    server.usual = faults.paced(100_000)
    transfer = start(server, bytearray(len(DATA)))
    transfer.wait()
    assert transfer.progress().hedges == 0
    assert len(server.ranges) == CHUNKS


def test_a_first_byte_that_comes_late_is_waited_for(server: FaultServer) -> None:
    others = threading.Event()

    def count(exchange: faults.Exchange) -> None:
        faults.honest(exchange)
        if len(server.ranges) == CHUNKS:
            others.set()

    server.play(faults.late(others))
    server.usual = count
    memory = bytearray(len(DATA))
    transfer = start(server, memory, hedge=False, concurrency=2)
    transfer.wait()
    assert memory == DATA
    assert (transfer.progress().retries, len(server.ranges)) == (0, CHUNKS)


def test_hedges_can_be_forbidden(server: FaultServer) -> None:
    server.play(*[faults.honest] * (CHUNKS - 1), faults.stall(5_000))
    transfer = start(server, bytearray(len(DATA)), hedge=False, deadline_s=2.0)
    with pytest.raises(DeadlineExceeded):
        transfer.wait()
    assert transfer.progress().hedges == 0


def test_over_tls_the_connection_that_is_interrupted_writes_nothing_wrong(loopback_tls: Tls) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(loopback_tls.certificate, loopback_tls.key)
    server = FaultServer({KEY: Stored.of(DATA)}, tls=context)
    try:
        environment = {**environment_of(server), "AWS_CA_BUNDLE": str(loopback_tls.certificate)}
        store = S3Store(parse_source("s3://bucket/model"), resolve_s3_settings(environment))
        item = only_object(store)
        server.play(*[faults.honest] * (CHUNKS - 2), faults.stall(5_000), faults.drip(3_000))
        memory = bytearray(len(DATA))
        transfer = Transfer(plan_of(), [item], store, memoryview(memory), policy=PATIENT)
        transfer.wait()
    finally:
        server.stop()
    assert memory == DATA
    assert transfer.progress().hedges == 2


# ---- least rate, deadline, cap


def test_a_trickle_is_ended_like_a_stall_and_resumed_from_the_missing_byte(server: FaultServer) -> None:
    server.play(faults.drip(7_000))
    memory = bytearray(len(DATA))
    transfer = start(server, memory, concurrency=1, patience_s=0.5)
    transfer.wait()
    assert memory == DATA
    assert transfer.progress().retries == 1
    first, again = server.ranges[:2]
    assert first == (0, CHUNK - 1)
    assert 7_000 <= again[0] < CHUNK - 1
    assert again[1] == CHUNK - 1


def test_a_deadline_ends_a_load_that_hangs(server: FaultServer) -> None:
    server.usual = faults.stall(100)
    transfer = start(server, bytearray(len(DATA)), deadline_s=0.3)
    with pytest.raises(DeadlineExceeded) as caught:
        transfer.wait()
    assert f"of {len(DATA):,} bytes were there when the 0.3 s" in str(caught.value)
    with pytest.raises(DeadlineExceeded):
        next(transfer.finished_groups())
    assert not names_of_threads()


def test_a_deadline_that_is_kept_says_nothing(server: FaultServer) -> None:
    memory = bytearray(len(DATA))
    start(server, memory, deadline_s=50.0).wait()
    assert memory == DATA


def test_a_cap_is_kept_by_all_connections_together(server: FaultServer) -> None:
    memory = bytearray(len(DATA))
    transfer = start(server, memory, rate_limit_mb_s=2.0)
    transfer.wait()
    assert memory == DATA
    now = transfer.progress()
    # What the clock says can only be more.
    assert now.seconds >= len(DATA) / 2e6


def test_cancel_ends_who_waits_for_the_cap(server: FaultServer) -> None:
    transfer = start(server, bytearray(len(DATA)), rate_limit_mb_s=0.001)
    while transfer.progress().bytes_done == 0:
        pass
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait()
    assert not names_of_threads()


# ---- nothing is left


STATES: dict[str, faults.Behaviour] = {
    "before the head": faults.stall_before_head,
    "in the body": faults.stall(1_000),
    "waiting to try again": faults.error(503, "SlowDown", Retry_After="60"),
    "trickling": faults.drip(0),
}


@pytest.mark.parametrize("state", STATES)
def test_cancel_leaves_no_thread_and_no_connection(state: str, server: FaultServer) -> None:
    reached = threading.Event()
    behaviour = STATES[state]

    def usual(exchange: faults.Exchange) -> None:
        reached.set()
        behaviour(exchange)

    server.usual = usual
    for _ in range(3):
        reached.clear()
        transfer = start(server, bytearray(len(DATA)))
        reached.wait()
        transfer.cancel()
        with pytest.raises(Cancelled):
            transfer.wait()
        assert not names_of_threads()
        assert sockets_to(server.port) == 0


def silent_listener(backlog: int) -> socket.socket:
    """Listens and never accepts."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(backlog)
    return listener


def store_at(url: str) -> S3Store:
    environment = {**environment_of_nobody(), "AWS_ENDPOINT_URL": url}
    return S3Store(parse_source("s3://bucket/model"), resolve_s3_settings(environment))


def environment_of_nobody() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": "A" * 20, "AWS_SECRET_ACCESS_KEY": "s" * 40, "AWS_REGION": "us-east-1"}


def wait_for_sockets(port: int, state: str) -> None:
    """Return when this host has connections to that port in a state of /proc/net/tcp's."""
    while not any(fields[2].endswith(f":{port:04X}") and fields[3] == state for fields in tcp_table()):
        pass


@pytest.mark.parametrize(("scheme", "backlog", "state"), [("http", 0, "02"), ("https", 99, "01")])
def test_cancel_ends_a_connection_that_is_being_made(scheme: str, backlog: int, state: str) -> None:
    with silent_listener(backlog) as listener, unaccepted(listener, 1 if backlog == 0 else 0):
        port = listener.getsockname()[1]
        item = ObjectInfo(KEY, "model.safetensors", len(DATA), "v")
        transfer = Transfer(
            plan_of(), [item], store_at(f"{scheme}://127.0.0.1:{port}"), memoryview(bytearray(len(DATA)))
        )
        wait_for_sockets(port, state)
        transfer.cancel()
        with pytest.raises(Cancelled):
            transfer.wait()
        assert not names_of_threads()


@contextmanager
def unaccepted(listener: socket.socket, count: int) -> Iterator[None]:
    """So many connections that nobody accepts; with a full queue the next ones hang while they are made."""
    clients = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    try:
        yield
    finally:
        for client in clients:
            client.close()
