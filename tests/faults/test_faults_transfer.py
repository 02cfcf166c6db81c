"""A whole transfer against faults: every byte in place, or one error after which nothing writes any more."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.source.uri import parse_source
from headrace.store.errors import (
    AccessDenied,
    Changed,
    ExpiredCredentials,
    StoreError,
    Throttled,
    TransientError,
    Unreachable,
)
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Reader, S3Store
from headrace.stream.plan import Placement, ReadPlan, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.pace import Pace
from headrace.stream.transfer.transfer import Cancelled, Transfer
from tests.faults import server as faults
from tests.faults.opening import (
    PATIENT_S,
    SECRET,
    STALL_TIMEOUT_S,
    environment_of,
    one_byte,
    only_object,
    store_of,
)
from tests.faults.server import Asked, Behaviour, FaultServer, Stored, fault_server

KEY = "model/model.safetensors"
CHUNK = 10_000
CHUNKS = 20
DATA = random.Random(2).randbytes(CHUNK * CHUNKS)
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)
# A stall that the test ends: far longer than any test, which the mark below would end first.
FOR_EVER_S = 3600.0
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({KEY: DATA}) as running:
        yield running


def whole_plan(data: bytes = DATA, groups: int = 1) -> ReadPlan:
    """The object as rows of bytes, the same number of chunks in each group."""
    step = len(data) // groups
    return plan_reads(
        [Placement(0, at * step, (at + 1) * step, at * step, at, "U8", "U8") for at in range(groups)],
        chunk_bytes=CHUNK,
    )


def start(
    store: S3Store, memory: bytearray, *, concurrency: int = 4, groups: int = 1, policy: RetryPolicy = AT_ONCE
) -> Transfer:
    return Transfer(
        whole_plan(groups=groups),
        [only_object(store)],
        store,
        memoryview(memory),
        concurrency=concurrency,
        policy=policy,
    )


MIXED: list[Behaviour] = [
    faults.short_body(1_234),
    faults.error(503, "SlowDown", Retry_After="0"),
    faults.reset_body(5_000),
    faults.honest,
    faults.close_before_head,
    faults.trickle(777),
    faults.chunked(900),
    faults.close_in_head,
    faults.stall(10),
    faults.error(500),
    faults.until_close(8_000),
    faults.close_after,
]


@pytest.mark.parametrize("concurrency", [1, 3, 8, 64])
@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_of_passing_faults_gives_the_objects_bytes(
    seed: int, concurrency: int, server: FaultServer
) -> None:
    behaviours = MIXED * 2
    random.Random(seed).shuffle(behaviours)
    server.play(*behaviours)
    memory = bytearray(len(DATA))
    store = store_of(server, stall_timeout_s=STALL_TIMEOUT_S)
    transfer = start(store, memory, concurrency=concurrency, policy=RetryPolicy(20, first_s=0.0))
    transfer.wait()
    assert memory == DATA
    assert transfer.progress().bytes_done == transfer.progress().bytes_total == len(DATA)


def test_no_byte_is_read_twice_where_nothing_fails(server: FaultServer) -> None:
    start(store_of(server), bytearray(len(DATA))).wait()
    assert sorted(server.ranges) == [(at, at + CHUNK - 1) for at in range(0, len(DATA), CHUNK)]


def test_each_retry_is_counted(server: FaultServer) -> None:
    server.play(faults.short_body(5), faults.error(500), faults.error(500))
    transfer = start(store_of(server), bytearray(len(DATA)), concurrency=1)
    transfer.wait()
    assert transfer.progress().retries == 3


def test_a_new_byte_starts_the_count_of_failures_anew(server: FaultServer) -> None:
    server.play(*[faults.short_body(1), faults.error(500), faults.error(500)] * 5)
    memory = bytearray(len(DATA))
    start(store_of(server), memory, concurrency=1).wait()
    assert memory == DATA


SILENT, LOUD = faults.stall(10), faults.chunked(900, stop_after=2_000)


@pytest.mark.parametrize(("behaviour", "times"), [(SILENT, 1), (LOUD, 0), (faults.garbage, 0)])
def test_only_silence_speaks_for_fewer_connections(
    behaviour: Behaviour, times: int, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(Pace, "timed_out", lambda pace, era: told.append(era))
    server.play(behaviour)
    patience_s = STALL_TIMEOUT_S if behaviour is SILENT else PATIENT_S
    store = store_of(server, stall_timeout_s=patience_s)
    transfer = start(store, bytearray(len(DATA)), concurrency=1)
    transfer.wait()
    assert (len(told), transfer.progress().retries) == (times, 1)


def test_a_failure_without_end_names_object_range_and_tries(server: FaultServer) -> None:
    server.play(faults.honest, *[faults.error(503, "SlowDown")] * 4)
    with pytest.raises(Throttled) as caught:
        start(store_of(server), bytearray(len(DATA)), concurrency=1).wait()
    message = str(caught.value)
    assert message.startswith(f"s3://bucket/{KEY}: Bytes 10000-19999 could not be read: The store asks to")
    assert "(HTTP 503, SlowDown, request id REQ1)" in message
    assert message.endswith("Given up after 4 tries without a new byte.")


def test_a_final_error_is_not_tried_again(server: FaultServer) -> None:
    server.play(faults.error(403, "AccessDenied"))
    with pytest.raises(AccessDenied, match="Bytes 0-9999 could not be read"):
        start(store_of(server), bytearray(len(DATA)), concurrency=1).wait()
    assert len(server.ranges) == 1


def test_an_object_that_is_replaced_in_the_middle_ends_the_transfer(server: FaultServer) -> None:
    server.play(faults.honest, faults.honest, faults.replace_first(KEY, Stored.of(DATA[::-1])))
    memory = bytearray(len(DATA))
    with pytest.raises(Changed):
        start(store_of(server), memory, concurrency=1).wait()
    assert memory == DATA[: 2 * CHUNK] + bytes(len(DATA) - 2 * CHUNK)


CHANGES = {"truncated": DATA[:-1], "grown": DATA + b"+", "replaced": DATA[::-1], "deleted": None}


@pytest.mark.parametrize("conditions", [True, False], ids=["conditions kept", "conditions ignored"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_object_that_changes_in_the_middle_is_told_as_changed(
    change: str, conditions: bool, server: FaultServer
) -> None:
    def happen(exchange: faults.Exchange) -> None:
        faults.honest(exchange)
        new = CHANGES[change]
        if new is None:
            del server.objects[KEY]
        else:
            server.objects[KEY] = Stored.of(new)

    def heedless(exchange: faults.Exchange) -> None:
        exchange.head()
        exchange.send(exchange.wanted)

    server.play(faults.honest, happen)
    if not conditions:
        server.usual = heedless
    memory = bytearray(len(DATA))
    with pytest.raises(Changed, match=KEY):
        start(store_of(server), memory, concurrency=1).wait()
    assert memory == DATA[: 2 * CHUNK] + bytes(len(DATA) - 2 * CHUNK)


def test_a_body_that_comes_twice_spoils_no_later_answer(server: FaultServer) -> None:
    def twice(exchange: faults.Exchange) -> None:
        faults.surplus(exchange.wanted, threading.Event())(exchange)

    server.usual = twice
    memory = bytearray(len(DATA))
    start(store_of(server), memory).wait()
    assert memory == DATA


def test_when_wait_raises_no_worker_is_left(server: FaultServer) -> None:
    def fail_when_others_stall(exchange: faults.Exchange) -> None:
        for _ in range(3):
            server.stalled.get()
        faults.error(403, "AccessDenied")(exchange)

    server.play(*[faults.stall(1_000)] * 3, fail_when_others_stall)
    before = set(threading.enumerate())
    transfer = start(store_of(server, stall_timeout_s=FOR_EVER_S), bytearray(len(DATA)))
    with pytest.raises(AccessDenied):
        transfer.wait()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in left if name.startswith("fetch-")]


@pytest.mark.parametrize("behaviour", [faults.stall(1_000), faults.stall_before_head])
def test_cancel_ends_reads_that_stall(behaviour: Behaviour, server: FaultServer) -> None:
    server.play(*[behaviour] * 4)
    transfer = start(store_of(server, stall_timeout_s=FOR_EVER_S), bytearray(len(DATA)))
    for _ in range(4):
        server.stalled.get()
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait()


def test_cancel_ends_a_wait_before_the_next_try(server: FaultServer) -> None:
    failed = threading.Event()

    def fail(exchange: faults.Exchange) -> None:
        faults.error(503, "SlowDown", Retry_After="60")(exchange)
        failed.set()

    server.play(fail)
    transfer = start(store_of(server), bytearray(len(DATA)), concurrency=1)
    failed.wait()
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait()


def test_who_waits_for_a_group_is_told_of_the_cancellation(server: FaultServer) -> None:
    server.play(faults.stall(1_000))
    transfer = start(store_of(server, stall_timeout_s=FOR_EVER_S), bytearray(len(DATA)), concurrency=1)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            transfer.wait_group(0)
        except Cancelled as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    server.stalled.get()
    transfer.cancel()
    waiter.join()
    assert len(told) == 1


def test_cancelling_a_finished_transfer_changes_nothing(server: FaultServer) -> None:
    memory = bytearray(len(DATA))
    transfer = start(store_of(server), memory)
    transfer.wait()
    transfer.cancel()
    transfer.wait()
    assert memory == DATA


def test_a_group_is_there_while_later_ones_are_on_their_way(server: FaultServer) -> None:
    server.play(*[faults.honest] * 10, faults.stall(0))
    memory = bytearray(len(DATA))
    transfer = start(store_of(server, stall_timeout_s=FOR_EVER_S), memory, concurrency=1, groups=2)
    transfer.wait_group(0)
    assert memory[: len(DATA) // 2] == DATA[: len(DATA) // 2]
    server.stalled.get()
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait_group(1)
    transfer.wait_group(0)  # what was complete stays so
    with pytest.raises(Cancelled):
        transfer.wait()


def test_a_store_that_restarts_in_the_middle_is_waited_for(server: FaultServer) -> None:
    store = store_of(server)
    item = only_object(store)
    gone, back = threading.Event(), threading.Event()

    class Patient(RetryPolicy):
        def delay_s(self, failures: int, retry_after_s: float | None, chance: random.Random) -> float:
            gone.set()  # a failure was seen
            back.wait()
            return 0.0

    server.play(*[faults.honest] * 5, faults.stall(100))
    memory = bytearray(len(DATA))
    transfer = Transfer(
        whole_plan(), [item], store, memoryview(memory), concurrency=1, policy=Patient(attempts=3)
    )
    server.stalled.get()
    server.stop()
    gone.wait()
    with pytest.raises(Unreachable):
        store.open_reader().read_into(item, 0, one_byte())
    again = FaultServer(server.objects, port=server.port)
    try:
        back.set()
        transfer.wait()
    finally:
        again.stop()
    assert memory == DATA
    assert again.ranges[0] == (5 * CHUNK + 100, 6 * CHUNK - 1)


def test_a_store_that_does_not_come_back_is_given_up(server: FaultServer) -> None:
    store = store_of(server)
    item = only_object(store)
    server.stop()
    with pytest.raises(Unreachable) as caught:
        Transfer(
            whole_plan(), [item], store, memoryview(bytearray(len(DATA))), concurrency=2, policy=AT_ONCE
        ).wait()
    assert f"s3://bucket/{KEY}: Bytes" in str(caught.value)
    assert f"{server.url}: No connection to the endpoint: connection refused." in str(caught.value)
    assert "Given up after 4 tries" in str(caught.value)


def test_a_worker_that_cannot_open_its_reader_ends_the_transfer(server: FaultServer) -> None:
    class NoReaders(S3Store):
        def open_reader(self) -> S3Reader:
            raise AccessDenied("s3://bucket/model", "No reader for you.")

    store = store_of(server)
    item = only_object(store)
    refusing = NoReaders(store.source, store.settings)
    transfer = Transfer(whole_plan(), [item], refusing, memoryview(bytearray(len(DATA))))
    with pytest.raises(AccessDenied):
        transfer.wait_group(0)
    with pytest.raises(AccessDenied):
        transfer.wait()


def test_readers_are_taken_over_with_their_connections(server: FaultServer) -> None:
    store = store_of(server)
    item = only_object(store)
    readers = [store.open_reader() for _ in range(2)]
    for reader in readers:
        reader.read_into(item, 0, one_byte())
    Transfer(
        whole_plan(), [item], store, memoryview(bytearray(len(DATA))), concurrency=2, readers=readers
    ).wait()
    # 0 was the listing's, 1 and 2 the first reads'.
    assert {asked.connection for asked in server.log if asked.range} == {1, 2}


def test_a_plan_without_chunks_is_done_at_once(server: FaultServer) -> None:
    store = store_of(server)
    transfer = Transfer(plan_reads([]), [], store, memoryview(bytearray(1)))
    transfer.wait_group(3)
    transfer.wait()
    assert transfer.progress().bytes_total == 0
    assert server.log == []


def test_tensors_and_groups_without_bytes_are_there_at_once(server: FaultServer) -> None:
    store = store_of(server)
    placements = [
        Placement(0, 50, 50, 0, 0, "BF16", "BF16"),
        Placement(0, 60, 70, 0, 1, "U8", "U8"),
        Placement(0, 70, 70, 10, 1, "U8", "U8"),
    ]
    memory = bytearray(10)
    transfer = Transfer(plan_reads(placements), [only_object(store)], store, memoryview(memory))
    transfer.wait_group(0)
    transfer.wait_group(1)
    transfer.wait()
    assert memory == DATA[60:70]


class Rotation:
    """Credentials in an AWS file that is rewritten while the store stops taking the old ones."""

    def __init__(self, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self._file))
        self.write("AKOLD000000000000000")
        environment = environment_of(server)
        del environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
        settings = resolve_s3_settings({**environment, "AWS_SHARED_CREDENTIALS_FILE": str(self._file)})
        self.store = S3Store(parse_source("s3://bucket/model"), settings)

    def write(self, access_key: str) -> None:
        self._file.write_text(
            f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {SECRET}\n"
        )


def refuse_old(status: int, code: str, asked: Asked) -> bytes | None:
    refused = "Credential=AKOLD" in asked.headers["authorization"]
    return faults.error_answer(status, code) if refused else None


@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "AccessDenied")]
)
def test_credentials_that_were_rotated_in_the_middle_are_found_anew(
    status: int, code: str, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotation = Rotation(server, tmp_path, monkeypatch)
    item = only_object(rotation.store)

    def rotate(exchange: faults.Exchange) -> None:
        faults.honest(exchange)
        rotation.write("AKNEW000000000000000")
        server.refuse = lambda asked: refuse_old(status, code, asked)

    server.play(*[faults.honest] * 5, rotate)
    memory = bytearray(len(DATA))
    Transfer(whole_plan(), [item], rotation.store, memoryview(memory), concurrency=4).wait()
    assert memory == DATA


def test_credentials_that_expired_and_are_still_the_same_are_a_final_error(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotation = Rotation(server, tmp_path, monkeypatch)
    item = only_object(rotation.store)
    server.refuse = lambda asked: refuse_old(400, "ExpiredToken", asked)
    with pytest.raises(ExpiredCredentials):
        Transfer(whole_plan(), [item], rotation.store, memoryview(bytearray(len(DATA))), concurrency=1).wait()
    assert len(server.log) == 2  # the listing and one read


def test_an_error_that_is_raised_once_is_told_to_everyone(server: FaultServer) -> None:
    server.play(faults.error(403, "AccessDenied"))
    transfer = start(store_of(server), bytearray(len(DATA)), concurrency=1)
    for wait in (transfer.wait, transfer.wait, lambda: transfer.wait_group(0)):
        with pytest.raises(StoreError):
            wait()


def test_a_transient_error_keeps_its_kind_when_it_is_given_up(server: FaultServer) -> None:
    server.play(*[faults.close_before_head] * 4)
    with pytest.raises(TransientError, match="The connection broke"):
        start(store_of(server), bytearray(len(DATA)), concurrency=1).wait()
