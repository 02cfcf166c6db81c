"""The queue of chunks: the plan's order, parts towards the end, and room before anything is begun."""

import threading

from headrace.source.objects import ObjectInfo
from headrace.store.base import Target
from headrace.stream.plan import Chunk, Placement, ReadPlan, plan_reads
from headrace.stream.transfer.staging import Staging
from headrace.stream.transfer.tasks import SHORTEST_CHUNK_BYTES, Read, TaskQueue

MIB = 1 << 20
FAST = 400.0 * MIB


def plan_of(mib: int, dtype: str = "F32") -> ReadPlan:
    return plan_reads([Placement(0, 0, mib * MIB, 0, 0, "F32", dtype)])


def drain(queue: TaskQueue, workers: int) -> list[int]:
    """Sizes of all tasks, in the order in which they are taken."""
    sizes: list[int] = []
    while (task := queue.take(workers)) is not None:
        sizes.append(task.chunk.end - task.chunk.start)
    return sizes


def test_chunks_are_taken_in_the_plans_order() -> None:
    queue = TaskQueue(plan_of(40), None, Staging())
    queue.rate = FAST
    starts = []
    while (task := queue.take(8)) is not None:
        starts.append(task.chunk.start)
    assert starts == [at * MIB for at in range(0, 40, 8)]


def test_while_no_rate_is_known_little_is_asked_for_at_once() -> None:
    queue = TaskQueue(plan_of(40), None, Staging())
    starts = [task.chunk.start for _ in range(3) if (task := queue.take(8)) is not None]
    queue.rate = FAST
    assert starts == [0, MIB, 2 * MIB]
    assert drain(queue, 8) == [5 * MIB, *[8 * MIB] * 4]


def test_on_slow_connections_a_chunk_is_what_comes_within_a_second() -> None:
    queue = TaskQueue(plan_of(400), None, Staging())
    queue.rate = 2.0 * MIB
    sizes = drain(queue, 8)
    assert sum(sizes) == 400 * MIB
    assert sizes[:100] == [2 * MIB] * 100
    assert len(sizes) < 250


def test_towards_the_end_chunks_become_shorter() -> None:
    queue = TaskQueue(plan_of(400), None, Staging())
    queue.rate = 8.0 * MIB
    sizes = drain(queue, 8)
    assert sum(sizes) == 400 * MIB
    assert sizes[:10] == [8 * MIB] * 10
    assert sizes[-8:] == [SHORTEST_CHUNK_BYTES] * 8
    assert len(sizes) < 110


def test_on_fast_connections_a_chunk_is_too_quick_to_be_worth_parts() -> None:
    queue = TaskQueue(plan_of(40), None, Staging())
    queue.rate = FAST
    assert drain(queue, 8) == [8 * MIB] * 5


def test_one_worker_has_nobody_to_end_together_with() -> None:
    queue = TaskQueue(plan_of(40), None, Staging())
    queue.rate = 1.0 * MIB
    assert drain(queue, 1) == [8 * MIB] * 5


def test_what_was_given_back_comes_before_anything_new() -> None:
    queue = TaskQueue(plan_of(40), None, Staging())
    queue.rate = FAST
    first, second = queue.take(8), queue.take(8)
    assert first is not None
    assert second is not None
    queue.give_back(first)
    assert len(queue) == 4
    assert queue.take(8) is first


def test_what_was_given_back_counts_as_received_until_it_is_taken_again() -> None:
    queue = TaskQueue(plan_of(40), None, Staging())
    queue.rate = FAST
    begun, untouched = queue.take(8), queue.take(8)
    assert begun is not None
    assert untouched is not None
    target = Target([memoryview(bytearray(8 * MIB))])
    target.received = 3 * MIB
    begun.read = Read(ObjectInfo("a", "a", 40 * MIB, "v", None), begun.chunk.start, target, threading.Event())
    queue.give_back(untouched)
    queue.give_back(begun)
    assert queue.received == 3 * MIB
    assert queue.take(8) is untouched
    assert queue.take(8) is begun
    assert queue.received == 0


def test_without_room_in_scratch_nothing_is_begun() -> None:
    staging = Staging(12 * MIB)
    queue = TaskQueue(plan_of(40, "BF16"), None, staging)
    queue.rate = FAST
    first = queue.take(8)
    assert first is not None
    assert queue.take(8) is None
    staging.release(first.staged, None)
    assert queue.take(8) is not None


class Counting:
    """A gate that says no to the second chunk until it is opened."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.open = False

    def may_start(self, chunk: Chunk) -> bool:
        self.asked.append(chunk.start)
        return self.open or chunk.start == 0


def test_the_gate_is_asked_for_the_next_chunk_alone_until_it_lets_it_pass() -> None:
    gate, staging = Counting(), Staging(12 * MIB)
    queue = TaskQueue(plan_of(24, "BF16"), gate, staging)
    queue.rate = FAST
    first = queue.take(8)
    assert first is not None
    staging.release(first.staged, None)
    assert queue.take(8) is None
    assert queue.take(8) is None
    gate.open = True
    assert queue.take(8) is not None  # and the room in scratch was not lost by the two refusals
    assert gate.asked == [0, 8 * MIB, 8 * MIB, 8 * MIB]
