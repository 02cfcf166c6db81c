"""A transfer from a folder: whatever the plan, each byte at its place; and what its seams promise."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.errors import StoreError, TransientError, Truncated
from headrace.store.local.store import LocalStore
from headrace.stream.plan import Chunk, Columns, Placement, placed_bytes, plan_reads
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.ledger import Cancelled
from headrace.stream.transfer.transfer import Transfer
from tests.profiles import examples

SEEDED = settings(max_examples=examples(60))
RANDOM = np.random.default_rng(5)
# Small floats, so that every conversion between the formats is exact or rounds, and none is NaN.
FLOATS = RANDOM.integers(-100, 100, 1 << 14)
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
SHARDS = {"a": FLOATS.astype(np.float32).tobytes(), "b": FLOATS.astype(np.float16).tobytes()}
STORED_AS = ("F32", "F16")
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with tempfile.TemporaryDirectory(prefix="headrace-transfer-") as folder:
        for name, data in SHARDS.items():
            Path(folder, name).write_bytes(data)
        yield LocalStore(parse_source(folder))


@pytest.fixture(scope="module")
def items(store: LocalStore) -> list[ObjectInfo]:
    return list(store.list().objects)


@st.composite
def placements(draw: st.DrawFn) -> list[Placement]:
    """Whole and cut, plain and converted, small and large, in a few groups and buffers without overlap."""
    ends: dict[int, int] = {}
    result: list[Placement] = []
    for shard, source_dtype in enumerate(STORED_AS):
        item = DTYPES[source_dtype].itemsize
        at = 0
        for _ in range(draw(st.integers(0, 12))):
            at += item * draw(st.sampled_from([0, 0, 0, 3]))
            row = draw(st.integers(1, 40))
            rows = draw(st.sampled_from([0, 1, 2, 7, 30]))
            dtype = draw(st.sampled_from([source_dtype, source_dtype, "BF16", "F32"]))
            columns = None
            if draw(st.booleans()):
                first = draw(st.integers(0, row - 1))
                columns = Columns(row * item, first * item, draw(st.integers(first + 1, row)) * item)
            buffer, group = draw(st.integers(0, 3)), draw(st.integers(0, 5))
            end = at + rows * row * item
            wanted = Placement(
                shard, at, end, ends.get(buffer, 0), group, source_dtype, dtype, buffer, columns
            )
            result.append(wanted)
            ends[buffer] = wanted.destination + placed_bytes(wanted)
            at = end
    return result


def expected(wanted: Placement) -> bytes:
    """What the placement's bytes become."""
    data = list(SHARDS.values())[wanted.shard][wanted.start : wanted.end]
    if wanted.columns is not None:
        rows = np.frombuffer(data, np.uint8).reshape(-1, wanted.columns.row_bytes)
        data = rows[:, wanted.columns.first : wanted.columns.last].tobytes()
    return np.frombuffer(data, DTYPES[wanted.source_dtype]).astype(DTYPES[wanted.dtype]).tobytes()


def sizes_of(wanted: Sequence[Placement]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for each in wanted:
        sizes[each.buffer] = max(sizes.get(each.buffer, 0), each.destination + placed_bytes(each))
    return sizes


@SEEDED
@given(placements(), st.integers(16, 3_000), st.integers(1, 5), st.sampled_from([0, 1_000, None]))
def test_every_placement_arrives_cut_and_converted_in_its_own_buffer(
    store: LocalStore,
    items: list[ObjectInfo],
    wanted: list[Placement],
    chunk_bytes: int,
    concurrency: int,
    staging_bytes: int | None,
) -> None:
    made: dict[int, bytearray] = {}
    sizes = sizes_of(wanted)

    def make(buffer: int) -> memoryview:
        assert buffer not in made
        made[buffer] = bytearray(sizes[buffer])
        return memoryview(made[buffer])

    transfer = Transfer(
        plan_reads(wanted, chunk_bytes),
        items,
        store,
        make,
        concurrency=concurrency,
        staging_bytes=staging_bytes,
    )
    assert sorted(transfer.finished_groups()) == sorted({each.group for each in wanted})
    transfer.wait()
    for each in wanted:
        if each.end > each.start:
            assert made[each.buffer][each.destination :][: placed_bytes(each)] == expected(each)


@SEEDED
@given(placements(), st.integers(16, 3_000))
def test_a_group_that_was_yielded_is_complete(
    store: LocalStore, items: list[ObjectInfo], wanted: list[Placement], chunk_bytes: int
) -> None:
    memories = {buffer: bytearray(size) for buffer, size in sizes_of(wanted).items()}
    transfer = Transfer(
        plan_reads(wanted, chunk_bytes),
        items,
        store,
        lambda buffer: memoryview(memories[buffer]),
        concurrency=3,
    )
    for group in transfer.finished_groups():
        for each in wanted:
            if each.group == group and each.end > each.start:
                assert memories[each.buffer][each.destination :][: placed_bytes(each)] == expected(each)
    transfer.wait()


def rows_of_a(group_bytes: int) -> list[Placement]:
    """The first shard, a group and a buffer for each `group_bytes` of it."""
    return [
        Placement(0, at, at + group_bytes, 0, at // group_bytes, "U8", "U8", at // group_bytes)
        for at in range(0, len(SHARDS["a"]), group_bytes)
    ]


def test_groups_without_bytes_come_first(store: LocalStore, items: list[ObjectInfo]) -> None:
    wanted = [Placement(0, 0, 100, 0, 0, "U8", "U8"), Placement(0, 100, 100, 0, 7, "U8", "U8")]
    transfer = Transfer(plan_reads(wanted), items, store, memoryview(bytearray(100)))
    assert list(transfer.finished_groups()) == [7, 0]


def test_a_finished_buffer_is_its_owners_alone(store: LocalStore, items: list[ObjectInfo]) -> None:
    made: dict[int, bytearray] = {}

    def make(buffer: int) -> memoryview:
        made[buffer] = bytearray(1_024)
        return memoryview(made[buffer])

    transfer = Transfer(plan_reads(rows_of_a(1_024), 4_096), items, store, make)
    for group in transfer.finished_groups():
        made[group].append(0)  # a bytearray with a view of it cannot grow
    transfer.wait()
    assert len(made) == len(SHARDS["a"]) // 1_024


def test_buffers_are_made_when_they_are_about_to_be_read(store: LocalStore, items: list[ObjectInfo]) -> None:
    made: list[int] = []

    def make(buffer: int) -> memoryview:
        made.append(buffer)
        return memoryview(bytearray(1_024))

    gate = Allowance(4_096)
    transfer = Transfer(plan_reads(rows_of_a(1_024), 1_024), items, store, make, concurrency=1, gate=gate)
    finished = transfer.finished_groups()
    for _ in range(4):
        next(finished)
    assert made == [0, 1, 2, 3]
    transfer.cancel()


def test_tiny_neighbours_ride_together(store: LocalStore, items: list[ObjectInfo]) -> None:
    made: dict[int, bytearray] = {}

    def make(buffer: int) -> memoryview:
        made[buffer] = bytearray(16)
        return memoryview(made[buffer])

    transfer = Transfer(plan_reads(rows_of_a(16)), items, store, make)
    transfer.wait()
    assert transfer.progress().requests == 1
    assert b"".join(made[number] for number in range(len(made))) == SHARDS["a"]


class Allowance:
    """A gate that lets chunks start while fewer than `room` bytes are outstanding; remembers the most."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.outstanding = self.most = 0
        self._lock = threading.Lock()

    def may_start(self, chunk: Chunk) -> bool:
        size = chunk.end - chunk.start
        with self._lock:
            if self.outstanding + size > self.room:
                return False
            self.outstanding += size
            self.most = max(self.most, self.outstanding)
            return True

    def free(self, size: int) -> None:
        with self._lock:
            self.outstanding -= size


@SEEDED
@given(st.sampled_from([64, 512, 1_024]), st.integers(1, 9), st.integers(1, 6), st.integers(1, 5))
def test_a_consumer_that_lags_slows_the_transfer_and_nothing_grows(
    store: LocalStore, items: list[ObjectInfo], group_bytes: int, room: int, concurrency: int, kept: int
) -> None:
    wanted = rows_of_a(group_bytes)
    gate = Allowance(max(room, kept) * group_bytes)
    made: dict[int, bytearray] = {}

    def make(buffer: int) -> memoryview:
        made[buffer] = bytearray(group_bytes)
        return memoryview(made[buffer])

    transfer = Transfer(
        plan_reads(wanted, group_bytes), items, store, make, concurrency=concurrency, gate=gate
    )
    held: list[int] = []
    seen = 0
    for group in transfer.finished_groups():
        assert made[group] == SHARDS["a"][group * group_bytes :][:group_bytes]
        held.append(group)
        seen += 1
        if len(held) >= kept:
            for old in held:
                del made[old]
                gate.free(group_bytes)
            held.clear()
            transfer.wake()
    transfer.wait()
    assert seen == len(wanted)
    assert gate.most <= gate.room


class Shut:
    """A gate that nobody passes."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def may_start(self, chunk: Chunk) -> bool:
        self.asked.set()
        return False


def test_cancel_wakes_who_waits_at_the_gate(store: LocalStore, items: list[ObjectInfo]) -> None:
    gate = Shut()
    transfer = Transfer(plan_reads(rows_of_a(1_024)), items, store, lambda _: memoryview(b""), gate=gate)
    gate.asked.wait()
    transfer.cancel()
    with pytest.raises(Cancelled):
        transfer.wait()
    with pytest.raises(Cancelled):
        next(transfer.finished_groups())


class Recorder:
    """A verifier that keeps what it was shown, and has `failures` to raise first."""

    def __init__(self, *failures: StoreError) -> None:
        self.seen: list[tuple[int, int, bytes]] = []
        self._failures = list(failures)

    def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
        self.seen.append((shard, start, b"".join(views)))
        if self._failures:
            raise self._failures.pop(0)


def test_the_verifier_sees_each_chunk_as_received_before_it_is_converted(
    store: LocalStore, items: list[ObjectInfo]
) -> None:
    size = len(SHARDS["a"])
    wanted = [Placement(0, 0, size, 0, 0, "F32", "BF16")]
    verifier = Recorder()
    transfer = Transfer(
        plan_reads(wanted, 1_000), items, store, memoryview(bytearray(size // 2)), verifier=verifier
    )
    transfer.wait()
    seen = sorted(verifier.seen)
    assert [start for _, start, _ in seen] == list(range(0, size, 1_000))
    assert b"".join(data for _, _, data in seen) == SHARDS["a"]


def test_a_chunk_that_is_not_proved_but_may_be_is_read_anew(
    store: LocalStore, items: list[ObjectInfo]
) -> None:
    verifier = Recorder(*[TransientError("a", "Not the right bytes.")] * 3)
    memory = bytearray(2_000)
    transfer = Transfer(
        plan_reads([Placement(0, 0, 2_000, 0, 0, "U8", "U8")]),
        items,
        store,
        memoryview(memory),
        verifier=verifier,
        policy=AT_ONCE,
    )
    transfer.wait()
    assert memory == SHARDS["a"][:2_000]
    assert transfer.progress().retries == 3
    assert [data for _, _, data in verifier.seen] == [SHARDS["a"][:2_000]] * 4


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ([TransientError("a", "Not the right bytes.")] * 4, TransientError),
        ([Truncated("a", "Bad.")], Truncated),
    ],
)
def test_a_chunk_that_cannot_be_proved_ends_the_transfer(
    failures: list[StoreError], kind: type[StoreError], store: LocalStore, items: list[ObjectInfo]
) -> None:
    transfer = Transfer(
        plan_reads(rows_of_a(1_024)),
        items,
        store,
        lambda _: memoryview(bytearray(1_024)),
        verifier=Recorder(*failures),
        policy=AT_ONCE,
        concurrency=1,
    )
    with pytest.raises(kind):
        transfer.wait()
    assert transfer.progress().groups_done == 0


def test_what_makes_buffers_may_fail_and_everyone_is_told(store: LocalStore, items: list[ObjectInfo]) -> None:
    def make(buffer: int) -> memoryview:
        raise MemoryError(buffer)

    transfer = Transfer(plan_reads(rows_of_a(1_024)), items, store, make)
    with pytest.raises(MemoryError):
        next(transfer.finished_groups())
    with pytest.raises(MemoryError):
        transfer.wait()


def test_progress_counts_groups_requests_and_bytes(store: LocalStore, items: list[ObjectInfo]) -> None:
    wanted = rows_of_a(1_024)
    transfer = Transfer(plan_reads(wanted, 2_048), items, store, lambda _: memoryview(bytearray(1_024)))
    transfer.wait()
    now = transfer.progress()
    assert (now.bytes_done, now.bytes_total) == (len(SHARDS["a"]), len(SHARDS["a"]))
    assert (now.groups_done, now.groups_total) == (len(wanted), len(wanted))
    assert now.requests == len(SHARDS["a"]) // 2_048
    assert (now.retries, now.hedges, now.hedged_bytes, now.concurrency) == (0, 0, 0, 0)


def test_two_who_ask_for_finished_groups_are_both_told_all(
    store: LocalStore, items: list[ObjectInfo]
) -> None:
    transfer = Transfer(plan_reads(rows_of_a(1_024)), items, store, lambda _: memoryview(bytearray(1_024)))
    first, second = list(transfer.finished_groups()), list(transfer.finished_groups())
    assert first == second
    assert sorted(first) == list(range(len(first)))


def ends_within_a_second(act: Callable[[], None]) -> bool:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(1.0)
    return not thread.is_alive()


def test_an_exception_in_the_consumer_can_end_it_at_once(store: LocalStore, items: list[ObjectInfo]) -> None:
    gate = Allowance(2_048)
    transfer = Transfer(
        plan_reads(rows_of_a(1_024), 1_024), items, store, lambda _: memoryview(bytearray(1_024)), gate=gate
    )
    next(transfer.finished_groups())

    def give_up() -> None:
        transfer.cancel()
        with pytest.raises(Cancelled):
            transfer.wait()

    assert ends_within_a_second(give_up)
