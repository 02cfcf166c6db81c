"""memory_limit: what it means, and that a plan under it always comes to its end."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.library.memory_limit import (
    LARGEST_TENSOR,
    UNLIMITED,
    MemoryGate,
    MemoryLimitTooSmall,
    fit_chunks,
    limit_bytes,
)
from headrace.stream.library.tensor_memory import ALIGNMENT_BYTES, TensorMemory, allocate
from headrace.stream.plan import ReadPlan, plan_reads
from headrace.stream.select import Selection, select
from tests.stream.safetensors_files import content, file_of, shard_of


def selection_of(*sizes: int) -> Selection:
    return select([shard_of(file_of({str(at): content("U8", (size,)) for at, size in enumerate(sizes)}))])


def test_the_words_of_the_limit() -> None:
    selection = selection_of(10, 30, 20)
    assert limit_bytes(UNLIMITED, selection, "x") is None
    assert limit_bytes(LARGEST_TENSOR, selection, "x") == 30
    assert limit_bytes(30, selection, "x") == 30
    assert limit_bytes(10**18, selection, "x") == 10**18
    assert limit_bytes(1, selection_of(), "x") is None


def test_a_limit_that_a_tensor_exceeds_is_refused_with_what_would_do() -> None:
    with pytest.raises(MemoryLimitTooSmall) as caught:
        limit_bytes(29, selection_of(10, 30, 20), "RUNAI_STREAMER_MEMORY_LIMIT")
    assert caught.value.message == "RUNAI_STREAMER_MEMORY_LIMIT is 29 bytes, but tensor 1 alone has 30."
    assert "Set it to 30 or more" in caught.value.remedy


SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=20)


@given(SIZES, st.integers(0, 80), st.integers(16, 100))
def test_chunks_that_fit_the_limit_are_the_same_reads_cut_further(
    sizes: list[int], extra: int, chunk_bytes: int
) -> None:
    limit = max(sizes) + extra
    plan = plan_reads(selection_of(*sizes).placements, chunk_bytes)
    fitted = fit_chunks(plan, sizes, limit)
    assert [p for chunk in fitted.chunks for p in chunk.pieces] == [p for c in plan.chunks for p in c.pieces]
    assert (fitted.bytes_total, fitted.groups) == (plan.bytes_total, plan.groups)
    for chunk in fitted.chunks:
        assert sum(sizes[number] for number in {piece.buffer for piece in chunk.pieces}) <= limit
        assert (chunk.start, chunk.end) == (chunk.pieces[0].start, chunk.pieces[-1].end)
    if limit >= sum(sizes):
        assert fitted == plan


def left_in(plan: ReadPlan) -> dict[int, int]:
    return {number: size for number, size in plan.groups.items() if size}


@given(SIZES, st.integers(0, 80), st.integers(16, 100), st.randoms(use_true_random=False))
def test_however_reads_and_consumer_take_turns_the_limit_holds_and_all_is_read(
    sizes: list[int], extra: int, chunk_bytes: int, chance: random.Random
) -> None:
    limit = max(sizes) + extra
    plan = fit_chunks(plan_reads(selection_of(*sizes).placements, chunk_bytes), sizes, limit)
    gate = MemoryGate(sizes, limit)
    waiting, running, complete = list(plan.chunks), [], []
    left = left_in(plan)
    while left or complete:
        moves = []
        if waiting and gate.may_start(waiting[0]):
            running.append(waiting.pop(0))
        if running:
            moves.append("read")
        if complete:
            moves.append("take")
        assert moves, "nothing can go on"
        if chance.choice(moves) == "read":
            for piece in running.pop(chance.randrange(len(running))).pieces:
                left[piece.buffer] -= piece.end - piece.start
                if not left[piece.buffer]:
                    del left[piece.buffer]
                    complete.append(piece.buffer)
        else:
            gate.release(complete.pop(chance.randrange(len(complete))))
        assert 0 <= gate.held_bytes <= limit
    assert not waiting
    assert gate.held_bytes == 0


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100_003, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_memory_is_aligned_writable_and_of_the_size_asked_for(size: int) -> None:
    arrays = [allocate(size) for _ in range(3)]
    for array in arrays:
        assert array.nbytes == size
        assert array.ctypes.data % ALIGNMENT_BYTES == 0 or size == 0
        array[:] = 7


def test_a_buffer_is_made_once_and_given_away_once() -> None:
    memory = TensorMemory([100, 0])
    memory.view(0)[:3] = b"abc"
    memory.view(0)[3:5] = b"de"
    taken = memory.take(0)
    assert taken[:5].tobytes() == b"abcde"
    assert memory.take(1).nbytes == 0
    with pytest.raises(AssertionError):
        memory.view(0)
