"""The read plan: every byte of every placement in exactly one piece, whatever the placements are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.plan import Chunk, Columns, Placement, placed_bytes, plan_reads, split, unit_bytes
from tests.profiles import examples

SEEDED = settings(max_examples=examples(120))
FLOATS = ("F64", "F32", "F16", "BF16")


def item_bytes(dtype: str) -> int:
    return DTYPE_BITS[dtype] // 8


@st.composite
def placements(draw: st.DrawFn) -> list[Placement]:
    """Tensors that lie in their shards without overlap (gaps allowed), in random groups and order."""
    dtype = draw(st.sampled_from(FLOATS))
    destination = 0
    result: list[Placement] = []
    for shard in range(draw(st.integers(1, 3))):
        at = draw(st.integers(8, 200))
        for _ in range(draw(st.integers(0, 7))):
            at += draw(st.sampled_from([0, 0, 0, 1, 64]))
            source_dtype = draw(st.sampled_from([dtype, dtype, *FLOATS]))
            elements = draw(st.integers(0, 60))
            end = at + elements * item_bytes(source_dtype)
            group = draw(st.integers(0, 4))
            result.append(Placement(shard, at, end, destination, group, source_dtype, dtype))
            destination += elements * item_bytes(dtype) + draw(st.sampled_from([0, 0, 24]))
            at = end
    return draw(st.permutations(result))


CHUNK_BYTES = st.integers(16, 300)
WINDOW_BYTES = st.sampled_from([0, 1, 100, 2000])


@SEEDED
@given(placements(), CHUNK_BYTES, WINDOW_BYTES)
def test_the_pieces_reassemble_every_placement(
    wanted: list[Placement], chunk_bytes: int, window_bytes: int
) -> None:
    plan = plan_reads(wanted, chunk_bytes, window_bytes=window_bytes)
    pieces = [piece for chunk in plan.chunks for piece in chunk.pieces]
    for placement in wanted:
        mine = sorted(
            (
                piece
                for piece in pieces
                if piece.shard == placement.shard and placement.start <= piece.start < placement.end
            ),
            key=lambda piece: piece.start,
        )
        at, destination = placement.start, placement.destination
        for piece in mine:
            assert (piece.start, piece.destination) == (at, destination)
            assert (piece.group, piece.source_dtype, piece.dtype) == (
                placement.group,
                placement.source_dtype,
                placement.dtype,
            )
            at = piece.end
            elements = (piece.end - piece.start) // item_bytes(piece.source_dtype)
            destination += elements * item_bytes(piece.dtype)
        assert at == placement.end or placement.start == placement.end


@SEEDED
@given(placements(), CHUNK_BYTES, WINDOW_BYTES)
def test_nothing_is_read_twice_and_nothing_that_nobody_wants(
    wanted: list[Placement], chunk_bytes: int, window_bytes: int
) -> None:
    plan = plan_reads(wanted, chunk_bytes, window_bytes=window_bytes)
    read = [(chunk.shard, byte) for chunk in plan.chunks for byte in range(chunk.start, chunk.end)]
    needed = {(p.shard, byte) for p in wanted for byte in range(p.start, p.end)}
    assert len(read) == len(set(read))
    assert set(read) == needed
    assert plan.bytes_total == len(needed)


@SEEDED
@given(placements(), CHUNK_BYTES, WINDOW_BYTES)
def test_no_chunk_is_empty_or_larger_than_asked_and_its_pieces_fill_it(
    wanted: list[Placement], chunk_bytes: int, window_bytes: int
) -> None:
    for chunk in plan_reads(wanted, chunk_bytes, window_bytes=window_bytes).chunks:
        assert 0 < chunk.end - chunk.start <= chunk_bytes
        at = chunk.start
        for piece in chunk.pieces:
            assert (piece.shard, piece.start) == (chunk.shard, at)
            assert piece.end > piece.start
            at = piece.end
        assert at == chunk.end


@SEEDED
@given(placements(), CHUNK_BYTES)
def test_lower_groups_are_read_first(wanted: list[Placement], chunk_bytes: int) -> None:
    groups = [piece.group for chunk in plan_reads(wanted, chunk_bytes).chunks for piece in chunk.pieces]
    assert groups == sorted(groups)


@SEEDED
@given(placements(), CHUNK_BYTES)
def test_tensors_are_cut_at_whole_elements(wanted: list[Placement], chunk_bytes: int) -> None:
    for chunk in plan_reads(wanted, chunk_bytes).chunks:
        for piece in chunk.pieces:
            assert (piece.end - piece.start) % item_bytes(piece.source_dtype) == 0


@SEEDED
@given(placements(), CHUNK_BYTES, WINDOW_BYTES)
def test_the_bytes_of_each_group_add_up(wanted: list[Placement], chunk_bytes: int, window_bytes: int) -> None:
    plan = plan_reads(wanted, chunk_bytes, window_bytes=window_bytes)
    expected: dict[int, int] = {}
    for placement in wanted:
        expected[placement.group] = expected.get(placement.group, 0) + placement.end - placement.start
    assert plan.groups == expected


@SEEDED
@given(placements(), CHUNK_BYTES)
def test_the_order_of_the_placements_does_not_matter(wanted: list[Placement], chunk_bytes: int) -> None:
    in_file_order = sorted(wanted, key=lambda p: (p.shard, p.start, p.end))
    assert plan_reads(wanted, chunk_bytes).chunks == plan_reads(in_file_order, chunk_bytes).chunks


def test_neighbours_are_read_together() -> None:
    wanted = [Placement(0, 100 + 10 * n, 110 + 10 * n, 64 * n, 0, "U8", "U8") for n in range(5)]
    (chunk,) = plan_reads(wanted, 1_000).chunks
    assert (chunk.start, chunk.end, len(chunk.pieces)) == (100, 150, 5)


def test_a_tensor_larger_than_a_chunk_is_cut() -> None:
    plan = plan_reads([Placement(0, 8, 58, 0, 0, "U8", "U8")], 20)
    assert [(chunk.start, chunk.end) for chunk in plan.chunks] == [(8, 28), (28, 48), (48, 58)]


@st.composite
def placements_with_columns(draw: st.DrawFn) -> list[Placement]:
    """Rows of which some columns are kept, between plain tensors, in two buffers."""
    ends = {0: 0, 1: 0}
    result: list[Placement] = []
    at = 8
    for _ in range(draw(st.integers(0, 8))):
        source_dtype, dtype = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(FLOATS))
        row, rows = draw(st.integers(1, 30)), draw(st.integers(0, 12))
        columns = None
        if draw(st.booleans()):
            first = draw(st.integers(0, row - 1))
            last = draw(st.integers(first + 1, row))
            columns = Columns(*(n * item_bytes(source_dtype) for n in (row, first, last)))
        buffer = draw(st.integers(0, 1))
        end = at + rows * row * item_bytes(source_dtype)
        group = draw(st.integers(0, 3))
        wanted = Placement(0, at, end, ends[buffer], group, source_dtype, dtype, buffer, columns)
        ends[buffer] += placed_bytes(wanted)
        result.append(wanted)
        at = end
    return result


def check_pieces(chunks: tuple[Chunk, ...] | list[Chunk], wanted: list[Placement]) -> None:
    """Each placement is cut into whole units that follow each other in the object and where they go."""
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    for placement in wanted:
        at, destination = placement.start, placement.destination
        mine = [piece for piece in pieces if placement.start <= piece.start < placement.end]
        for piece in sorted(mine, key=lambda piece: piece.start):
            assert (piece.start, piece.destination) == (at, destination)
            assert (piece.buffer, piece.columns, piece.dtype) == (
                placement.buffer,
                placement.columns,
                placement.dtype,
            )
            assert (piece.end - piece.start) % unit_bytes(piece) == 0
            at, destination = piece.end, destination + placed_bytes(piece)
        assert at == placement.end
        assert destination == placement.destination + placed_bytes(placement)


@SEEDED
@given(placements_with_columns(), CHUNK_BYTES)
def test_placements_with_columns_are_cut_at_whole_rows(wanted: list[Placement], chunk_bytes: int) -> None:
    chunks = plan_reads(wanted, chunk_bytes).chunks
    check_pieces(chunks, wanted)
    longest_row = max([unit_bytes(each) for each in wanted], default=0)
    assert all(chunk.end - chunk.start <= max(chunk_bytes, longest_row) for chunk in chunks)


@SEEDED
@given(placements_with_columns(), CHUNK_BYTES, st.integers(1, 200))
def test_a_chunk_that_is_split_is_the_same_work_in_two(
    wanted: list[Placement], chunk_bytes: int, first_bytes: int
) -> None:
    halves: list[Chunk] = []
    for chunk in plan_reads(wanted, chunk_bytes).chunks:
        first, rest = split(chunk, first_bytes)
        assert first.start == chunk.start
        assert (rest.end if rest else first.end) == chunk.end
        assert rest is None or rest.start == first.end
        assert first.end - first.start <= max(first_bytes, unit_bytes(chunk.pieces[0]))
        halves += [first, rest] if rest else [first]
    check_pieces(halves, wanted)


def test_no_placements_make_no_reads() -> None:
    plan = plan_reads([])
    assert (plan.chunks, plan.bytes_total, plan.groups) == ((), 0, {})


def test_a_tensor_without_elements_makes_a_group_but_no_read() -> None:
    plan = plan_reads([Placement(0, 8, 8, 0, 3, "BF16", "BF16")])
    assert (plan.chunks, plan.groups) == ((), {3: 0})


def test_small_tensors_in_an_order_of_the_callers_own_ride_together() -> None:
    count, size = 1_000, 10
    backwards = [
        Placement(0, at * size, (at + 1) * size, 0, count - at, "U8", "U8", at) for at in range(count)
    ]
    assert len(plan_reads(backwards, 1_000).chunks) == count
    assert len(plan_reads(backwards, 1_000, window_bytes=1_000).chunks) == count * size // 1_000


def test_large_tensors_stay_in_the_callers_order() -> None:
    wanted = [Placement(0, at * 100, (at + 1) * 100, 0, 9 - at, "U8", "U8", at) for at in range(9)]
    assert plan_reads(wanted, 1_000, window_bytes=1_000) == plan_reads(wanted, 1_000)
