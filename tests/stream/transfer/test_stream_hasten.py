"""Bytes that are wanted before their turn: cut out of the chunks that nobody has taken, read once, told when they
are there."""

import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.errors import TransientError, Truncated
from headrace.store.local.store import LocalStore
from headrace.stream.plan import Chunk, Placement, placed_bytes, plan_reads, unit_bytes
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.hasten import ByteRange, cut_out, joined, overlap_bytes
from headrace.stream.transfer.staging import Staging
from headrace.stream.transfer.tasks import SHORTEST_CHUNK_BYTES, TaskQueue
from headrace.stream.transfer.transfer import Transfer
from tests.profiles import examples
from tests.stream.transfer.test_stream_transfer import SHARDS, expected, placements, sizes_of

SEEDED = settings(max_examples=examples(60))
MIB = 1 << 20
AT_ONCE = RetryPolicy(attempts=3, first_s=0.0)
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with tempfile.TemporaryDirectory(prefix="headrace-hasten-") as folder:
        for name, data in SHARDS.items():
            Path(folder, name).write_bytes(data)
        yield LocalStore(parse_source(folder))


@pytest.fixture(scope="module")
def items(store: LocalStore) -> list[ObjectInfo]:
    return list(store.list().objects)


@st.composite
def ranges(draw: st.DrawFn) -> list[ByteRange]:
    """Anywhere in the two objects: they may overlap, be empty, and lie where nothing is read."""
    result = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, 12_000))
        result.append(ByteRange(draw(st.integers(0, 1)), start, start + draw(st.integers(0, 900))))
    return result


def covered(all_ranges: Sequence[ByteRange]) -> set[tuple[int, int]]:
    return {(each.shard, at) for each in all_ranges for at in range(each.start, each.end)}


@given(ranges())
def test_joined_ranges_hold_the_same_bytes_once_and_in_order(wanted: list[ByteRange]) -> None:
    result = joined(wanted)
    assert covered(result) == covered(wanted)
    assert sum(each.end - each.start for each in result) == len(covered(wanted))
    assert list(result) == sorted(result)


@SEEDED
@given(placements(), st.integers(16, 3_000), ranges())
def test_cutting_keeps_every_byte_and_its_place_and_divides_nothing_that_is_whole(
    wanted: list[Placement], chunk_bytes: int, hastened: list[ByteRange]
) -> None:
    ahead = joined(hastened)
    for chunk in plan_reads(wanted, chunk_bytes).chunks:
        first, rest = cut_out(chunk, ahead)
        pieces = sorted((piece for part in first + rest for piece in part.pieces), key=lambda p: p.start)
        assert pieces[0].start == chunk.start
        assert pieces[-1].end == chunk.end
        assert all(before.end == after.start for before, after in pairwise(pieces))
        for part in first + rest:
            assert (part.start, part.end) == (part.pieces[0].start, part.pieces[-1].end)
        for piece in pieces:
            (whole,) = [p for p in chunk.pieces if p.start <= piece.start and piece.end <= p.end]
            unit = unit_bytes(whole)
            assert (piece.start - whole.start) % unit == 0
            assert (piece.end - piece.start) % unit == 0
            before = (piece.start - whole.start) * placed_bytes(whole) // (whole.end - whole.start)
            assert piece.destination == whole.destination + before
            assert piece.group == whole.group
        assert sum(overlap_bytes(part, ahead) for part in rest) == 0
        # Nothing more than was asked for but for what fills its unit up.
        for part in first:
            edge = max(unit_bytes(piece) for piece in part.pieces)
            assert part.end - part.start < overlap_bytes(part, ahead) + 2 * edge * len(ahead)


def plan_of(mib: int) -> list[Placement]:
    return [Placement(0, 0, mib * MIB, 0, 0, "U8", "U8")]


def test_what_is_hastened_comes_next_and_the_rest_in_the_plans_order() -> None:
    queue = TaskQueue(plan_reads(plan_of(32)), None, Staging())
    queue.rate = 400.0 * MIB
    assert queue.take(8) is not None
    assert queue.hasten([ByteRange(0, 10 * MIB, 10 * MIB + 5), ByteRange(0, 31 * MIB, 32 * MIB)]) == MIB + 5
    taken = []
    while (task := queue.take(8)) is not None:
        taken.append((task.chunk.start, task.chunk.end, task.hastened))
    assert taken == [
        (10 * MIB, 10 * MIB + 5, True),
        (31 * MIB, 32 * MIB, True),
        (8 * MIB, 10 * MIB, False),
        (10 * MIB + 5, 16 * MIB, False),
        (16 * MIB, 24 * MIB, False),
        (24 * MIB, 31 * MIB, False),
    ]


def test_what_was_hastened_before_stays_in_front() -> None:
    queue = TaskQueue(plan_reads(plan_of(32)), None, Staging())
    queue.rate = 400.0 * MIB
    assert queue.hasten([ByteRange(0, 20 * MIB, 20 * MIB + 7)]) == 7
    assert queue.hasten([ByteRange(0, 9 * MIB, 9 * MIB + 3), ByteRange(0, 20 * MIB, 20 * MIB + 5)]) == 8
    starts = [task.chunk.start for _ in range(3) if (task := queue.take(8)) is not None]
    assert starts == [20 * MIB, 9 * MIB, 0]


def test_a_large_range_that_is_hastened_is_still_read_in_parts_on_slow_connections() -> None:
    queue = TaskQueue(plan_reads(plan_of(64)), None, Staging())
    assert queue.hasten([ByteRange(0, 32 * MIB, 64 * MIB)]) == 32 * MIB
    first, second = queue.take(8), queue.take(8)
    assert first is not None and second is not None
    assert (first.chunk.start, first.chunk.end) == (32 * MIB, 32 * MIB + SHORTEST_CHUNK_BYTES)
    assert second.chunk.start == first.chunk.end
    assert second.hastened


def test_what_was_given_back_counts_as_missing_and_still_comes_first() -> None:
    queue = TaskQueue(plan_reads(plan_of(32)), None, Staging())
    queue.rate = 400.0 * MIB
    task = queue.take(8)
    assert task is not None
    queue.give_back(task)
    assert queue.hasten([ByteRange(0, MIB, 2 * MIB), ByteRange(0, 20 * MIB, 21 * MIB)]) == 2 * MIB
    assert queue.take(8) is task


class Sometimes:
    """A verifier that sends chunks back now and then, and notes every byte that it let pass."""

    def __init__(self, failures: Sequence[bool]) -> None:
        self._failures = list(failures)
        self._lock = threading.Lock()
        self.passed: list[tuple[int, int, int]] = []

    def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
        with self._lock:
            if self._failures and self._failures.pop():
                raise TransientError("a", "Not yet.")
            self.passed.append((shard, start, start + sum(map(len, views))))


@SEEDED
@given(
    placements(),
    st.integers(16, 3_000),
    st.integers(1, 4),
    st.lists(ranges(), max_size=4),
    st.sampled_from([0, 1_000, None]),
    st.booleans(),
    st.lists(st.booleans(), max_size=12),
)
def test_whatever_is_hastened_while_it_runs_every_byte_is_read_once_and_told_when_it_is_there(
    store: LocalStore,
    items: list[ObjectInfo],
    wanted: list[Placement],
    chunk_bytes: int,
    concurrency: int,
    calls: list[list[ByteRange]],
    staging_bytes: int | None,
    is_verified: bool,
    failures: list[bool],
) -> None:
    memories = {buffer: bytearray(size) for buffer, size in sizes_of(wanted).items()}
    verifier = Sometimes(failures) if is_verified else None
    plan = plan_reads(wanted, chunk_bytes)
    transfer = Transfer(
        plan,
        items,
        store,
        lambda buffer: memoryview(memories[buffer]),
        concurrency=concurrency,
        staging_bytes=staging_bytes,
        verifier=verifier,
        policy=RetryPolicy(attempts=20, first_s=0.0),
    )

    def arrived(each: Placement) -> bool:
        return memories[each.buffer][each.destination :][: placed_bytes(each)] == expected(each)

    for call in calls:
        number = transfer.hasten(call)
        assert transfer.wait_group(number)
        whole = covered(call)
        for each in wanted:
            if each.end > each.start and all((each.shard, at) in whole for at in range(each.start, each.end)):
                assert arrived(each)
    for group in transfer.finished_groups():
        assert group >= 0
        assert all(arrived(each) for each in wanted if each.group == group and each.end > each.start)
    transfer.wait()
    assert all(arrived(each) for each in wanted if each.end > each.start)
    now = transfer.progress()
    assert now.bytes_done == now.bytes_total == plan.bytes_total
    assert now.groups_done == now.groups_total == len(plan.groups)
    if verifier is not None:
        read = sorted(verifier.passed)
        assert all(first[0] != second[0] or first[2] <= second[1] for first, second in pairwise(read))
        assert sum(end - start for _, start, end in read) == plan.bytes_total


def test_what_is_there_already_is_not_waited_for(store: LocalStore, items: list[ObjectInfo]) -> None:
    transfer = Transfer(plan_reads([Placement(0, 0, 5_000, 0, 0, "U8", "U8")]), items, store, _room(5_000))
    transfer.wait()
    assert transfer.wait_group(transfer.hasten([ByteRange(0, 0, 5_000)]), timeout_s=0)


def _room(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Held:
    """A verifier that lets a chunk pass when a test says so."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()

    def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
        self.began.set()
        assert self.go_on.wait(60)


def test_what_is_under_way_is_waited_for_and_not_read_again(
    store: LocalStore, items: list[ObjectInfo]
) -> None:
    held = Held()
    transfer = Transfer(
        plan_reads([Placement(0, 0, 5_000, 0, 0, "U8", "U8")], 1_000),
        items,
        store,
        _room(5_000),
        concurrency=1,
        verifier=held,
    )
    assert held.began.wait(60)
    number = transfer.hasten([ByteRange(0, 10, 20)])
    assert not transfer.wait_group(number, timeout_s=0)
    held.go_on.set()
    assert transfer.wait_group(number)
    transfer.wait()
    assert transfer.progress().requests == 5


def test_who_waits_for_hastened_bytes_is_told_what_ended_the_transfer(
    store: LocalStore, items: list[ObjectInfo]
) -> None:
    class Refusing:
        def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
            raise Truncated("a", "Bad.")

    transfer = Transfer(
        plan_reads([Placement(0, 0, 5_000, 0, 0, "U8", "U8")], 1_000),
        items,
        store,
        _room(5_000),
        verifier=Refusing(),
        policy=AT_ONCE,
    )
    with pytest.raises(Truncated):
        transfer.wait_group(transfer.hasten([ByteRange(0, 4_000, 4_100)]))
    with pytest.raises(Truncated):
        transfer.wait()
    assert transfer.wait_end(0)


def test_short_hastened_reads_say_nothing_of_what_a_connection_brings(
    store: LocalStore, items: list[ObjectInfo]
) -> None:
    whole = Chunk(0, 0, 5_000, (Placement(0, 0, 5_000, 0, 0, "U8", "U8"),))
    first, _ = cut_out(whole, [ByteRange(0, 1_000, 1_100)])
    assert [(chunk.start, chunk.end) for chunk in first] == [(1_000, 1_100)]
    held = Held()
    transfer = Transfer(
        plan_reads([Placement(0, 0, 5_000, 0, 0, "U8", "U8")], 1_000),
        items,
        store,
        _room(5_000),
        concurrency=1,
        verifier=held,
    )
    assert held.began.wait(60)
    transfer.hasten([ByteRange(0, at, at + 10) for at in range(2_000, 4_000, 100)])
    held.go_on.set()
    transfer.wait()
    assert len(transfer._crew.rates) == 23  # three chunks, and what 20 rows leave of the two others
