"""The plan that the ranks of a machine share: what any of them wants, once, and who wants it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.plan import Columns, Placement, plan_reads
from headrace.stream.ranks.wants import pack_wants, pieces_of, plan_machine, uncut
from tests.profiles import examples

SEEDED = settings(max_examples=examples(120))
SIZES = [400, 300]
CHUNK_BYTES = st.integers(16, 200)


@st.composite
def tensors(draw: st.DrawFn) -> list[Placement]:
    """Tensors of a checkpoint, whole; the group is their place in it."""
    result: list[Placement] = []
    for shard, size in enumerate(SIZES):
        at = draw(st.integers(8, 40))
        for _ in range(draw(st.integers(0, 7))):
            dtype = draw(st.sampled_from(["U8", "BF16", "F32"]))
            rows, row = draw(st.integers(0, 6)), draw(st.integers(1, 5)) * DTYPE_BITS[dtype] // 8
            if at + rows * row > size:
                break
            number = len(result)
            columns = Columns(row, 0, row)
            result.append(Placement(shard, at, at + rows * row, 0, number, dtype, dtype, number, columns))
            at += rows * row
    return result


@st.composite
def wants(draw: st.DrawFn) -> list[list[Placement]]:
    """What each of some ranks wants of the same tensors: some of them, whole, some rows or some columns."""
    whole = draw(tensors())
    ranks: list[list[Placement]] = []
    for _ in range(draw(st.integers(1, 4))):
        chosen: list[Placement] = []
        for tensor in draw(st.lists(st.sampled_from(whole), unique=True)) if whole else []:
            assert tensor.columns is not None
            row = tensor.columns.row_bytes
            first, last = sorted(draw(st.tuples(*[st.integers(0, (tensor.end - tensor.start) // row)] * 2)))
            columns = tensor.columns if draw(st.booleans()) else None
            chosen.append(
                Placement(
                    tensor.shard,
                    tensor.start + first * row,
                    tensor.start + last * row,
                    0,
                    len(chosen),
                    tensor.source_dtype,
                    tensor.dtype,
                    len(chosen),
                    columns,
                )
            )
        ranks.append(chosen)
    return ranks


def bytes_of(placements: list[Placement]) -> set[tuple[int, int]]:
    return {(p.shard, at) for p in placements for at in range(p.start, p.end)}


@SEEDED
@given(wants(), CHUNK_BYTES)
def test_every_wanted_byte_is_in_one_chunk_and_no_other(
    ranks: list[list[Placement]], chunk_bytes: int
) -> None:
    plan = plan_machine([pack_wants(rank) for rank in ranks], SIZES, chunk_bytes)
    read = [(chunk.shard, at) for chunk in plan.chunks for at in range(chunk.start, chunk.end)]
    assert len(read) == len(set(read)) == plan.bytes_total
    assert set(read) == set().union(*(bytes_of(rank) for rank in ranks))


@SEEDED
@given(wants(), CHUNK_BYTES)
def test_a_chunk_is_wanted_by_exactly_those_who_want_some_of_its_bytes(
    ranks: list[list[Placement]], chunk_bytes: int
) -> None:
    plan = plan_machine([pack_wants(rank) for rank in ranks], SIZES, chunk_bytes)
    for chunk, wanted_by in zip(plan.chunks, plan.wanted_by, strict=True):
        inside = {(chunk.shard, at) for at in range(chunk.start, chunk.end)}
        assert wanted_by == sum(1 << n for n, rank in enumerate(ranks) if inside & bytes_of(rank))


@SEEDED
@given(wants(), CHUNK_BYTES)
def test_each_rank_finds_its_placements_in_the_chunks_that_hold_them(
    ranks: list[list[Placement]], chunk_bytes: int
) -> None:
    plan = plan_machine([pack_wants(rank) for rank in ranks], SIZES, chunk_bytes)
    for rank in ranks:
        for chunk, pieces in zip(plan.chunks, pieces_of(rank, plan.chunks), strict=True):
            assert sorted(pieces, key=rank.index) == [
                p
                for p in rank
                if p.shard == chunk.shard and max(p.start, chunk.start) < min(p.end, chunk.end)
            ]


@SEEDED
@given(wants(), CHUNK_BYTES)
def test_chunks_are_cut_between_elements_and_are_not_too_large(
    ranks: list[list[Placement]], chunk_bytes: int
) -> None:
    plan = plan_machine([pack_wants(rank) for rank in ranks], SIZES, chunk_bytes)
    for chunk in plan.chunks:
        assert 0 < chunk.end - chunk.start <= chunk_bytes
        for rank in ranks:
            for p in rank:
                for cut in (chunk.start, chunk.end):
                    if p.shard == chunk.shard and p.start < cut < p.end:
                        assert (cut - p.start) % (DTYPE_BITS[p.source_dtype] // 8) == 0


@SEEDED
@given(wants(), CHUNK_BYTES)
def test_the_pieces_of_a_plan_are_the_placements_that_it_was_made_from(
    ranks: list[list[Placement]], chunk_bytes: int
) -> None:
    for rank in ranks:
        groups = [p for p in rank if p.end > p.start]
        assert uncut(plan_reads(rank, chunk_bytes)) == sorted(
            groups, key=lambda p: (p.group, p.shard, p.start)
        )


def whole(start: int, end: int, group: int) -> Placement:
    return Placement(0, start, end, 0, group, "U8", "U8", group)


def test_a_range_takes_the_earliest_place_that_a_rank_gives_it() -> None:
    first = [whole(8, 58, 0), whole(58, 108, 1)]
    second = [whole(58, 108, 0), whole(200, 250, 1)]
    plan = plan_machine([pack_wants(first), pack_wants(second)], SIZES, 50)
    assert [(c.start, c.end) for c in plan.chunks] == [(8, 58), (58, 108), (200, 250)]
    assert plan.wanted_by == (0b01, 0b11, 0b10)


def test_a_tensor_is_read_in_one_go_where_another_rank_wants_a_part_of_it_earlier() -> None:
    first = [whole(8, 58, 0), whole(58, 108, 1), whole(108, 208, 2)]
    second = [whole(108, 158, 0)]
    plan = plan_machine([pack_wants(first), pack_wants(second)], SIZES, 50)
    assert [(c.start, c.end) for c in plan.chunks] == [(8, 58), (108, 158), (158, 208), (58, 108)]


def test_large_chunks_end_at_whole_mebibytes_of_the_object() -> None:
    size = 9 << 20
    tensors = [
        Placement(0, 1_000, 1_000_001, 0, 0, "U8", "U8"),
        Placement(0, 1_000_001, size, 0, 1, "U8", "U8"),
    ]
    plan = plan_machine([pack_wants(tensors)], [size], (2 << 20) + 77)
    ends = [chunk.end for chunk in plan.chunks]
    assert ends == [2 << 20, 4 << 20, 6 << 20, 8 << 20, 9 << 20]


def test_an_element_across_a_mebibyte_is_not_cut() -> None:
    size = (3 << 20) + 3
    plan = plan_machine([pack_wants([Placement(0, 3, size, 0, 0, "F32", "F32")])], [size], 1 << 20)
    assert [chunk.end for chunk in plan.chunks] == [(1 << 20) - 1, (2 << 20) - 1, (3 << 20) - 1, size]


def test_ranks_that_want_nothing_make_no_reads() -> None:
    plan = plan_machine([pack_wants([]), pack_wants([whole(8, 8, 0)])], SIZES, 50)
    assert (plan.chunks, plan.wanted_by, plan.bytes_total) == ((), (), 0)
