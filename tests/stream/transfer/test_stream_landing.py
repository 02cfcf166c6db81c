"""Where a chunk's bytes land: large plain pieces in place, the rest by way of bounded scratch."""

import pytest

from headrace.stream.plan import Chunk, Columns, Placement, plan_reads
from headrace.stream.transfer.landing import SMALL_BYTES, Run, runs_of, staged_bytes
from headrace.stream.transfer.memory import ManyBuffers
from headrace.stream.transfer.staging import Staging


def chunk_of(*placements: Placement) -> Chunk:
    (chunk,) = plan_reads(placements).chunks
    return chunk


def spans(runs: list[Run]) -> list[tuple[int, int, int, bool]]:
    return [(run.start, run.end, len(run.spans), run.in_place) for run in runs]


def row(start: int, size: int, destination: int, *, dtype: str = "U8", buffer: int = 0) -> Placement:
    return Placement(0, start, start + size, destination, 0, "U8" if dtype == "U8" else "F32", dtype, buffer)


def test_a_large_plain_piece_is_received_in_place() -> None:
    runs = runs_of(chunk_of(row(0, SMALL_BYTES, 64)))
    assert spans(runs) == [(0, SMALL_BYTES, 1, True)]
    assert staged_bytes(runs) == 0


def test_neighbours_that_stay_neighbours_are_received_as_one() -> None:
    runs = runs_of(chunk_of(*[row(1_000 * n, 1_000, 64 + 1_000 * n) for n in range(100)]))
    assert spans(runs) == [(0, 100_000, 1, True)]


def test_small_neighbours_that_go_apart_ride_together_through_scratch() -> None:
    runs = runs_of(chunk_of(*[row(1_000 * n, 1_000, 1_024 * n) for n in range(100)]))
    assert spans(runs) == [(0, 100_000, 100, False)]


def test_small_ones_in_buffers_of_their_own_go_through_scratch_too() -> None:
    runs = runs_of(chunk_of(*[row(1_000 * n, 1_000, 0, buffer=n) for n in range(3)]))
    assert spans(runs) == [(0, 3_000, 3, False)]


def test_a_small_one_alone_is_received_in_place() -> None:
    assert spans(runs_of(chunk_of(row(0, 8, 0)))) == [(0, 8, 1, True)]


def test_a_large_one_between_small_ones_is_received_in_place() -> None:
    large = SMALL_BYTES * 2
    runs = runs_of(chunk_of(row(0, 8, 0), row(8, large, 64), row(8 + large, 8, 0, buffer=1)))
    assert spans(runs) == [(0, 8, 1, False), (8, 8 + large, 1, True), (8 + large, 16 + large, 1, False)]


def test_what_is_converted_or_cut_goes_through_scratch_whatever_its_size() -> None:
    size = 4 * SMALL_BYTES
    assert staged_bytes(runs_of(chunk_of(row(0, size, 0, dtype="BF16")))) == size
    cut = Placement(0, 0, size, 0, 0, "U8", "U8", 0, Columns(16, 0, 8))
    assert staged_bytes(runs_of(chunk_of(cut))) == size


def test_scratch_is_bounded_but_one_is_always_served() -> None:
    staging = Staging(1_000)
    assert staging.reserve(5_000)
    assert not staging.reserve(1)
    staging.release(5_000, None)
    assert staging.reserve(400)
    assert staging.reserve(600)
    assert not staging.reserve(1)


def test_scratch_without_a_limit_is_never_refused() -> None:
    staging = Staging(None)
    assert all(staging.reserve(1 << 40) for _ in range(5))


def test_scratch_is_used_again_where_it_is_large_enough() -> None:
    staging = Staging()
    small, large = staging.take(10), staging.take(100)
    staging.release(0, small)
    staging.release(0, large)
    assert staging.take(50) is large
    assert len(staging.take(500)) == 500


def test_a_buffer_is_made_once_and_let_go_of_when_it_is_full() -> None:
    made: list[bytearray] = []

    def make(number: int) -> memoryview:
        made.append(bytearray(10))
        return memoryview(made[-1])

    plan = plan_reads([row(0, 4, 0, buffer=3), row(4, 6, 4, buffer=3)])
    memory = ManyBuffers(make, plan.chunks)
    memory.place(3, 0, 4)[:] = b"1234"
    memory.filled({3: 4})
    with pytest.raises(BufferError):
        made[0].append(0)
    memory.place(3, 4, 6)[:] = b"567890"
    memory.filled({3: 6})
    assert made == [bytearray(b"1234567890")]
    made[0].append(0)
