"""Which reads bring the rows of an embedding: all of them, few, and no more than the table."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from headrace.engine.loading.embedding_rows import JOINED_BYTES, MOST_READS, Table, ranges_of_rows, table_of
from headrace.engine.loading.weights import place_tensors, plan_arena
from headrace.models.layout import Layout
from headrace.models.registry import layout_of
from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import Shard, TensorInfo
from headrace.stream.transfer.hasten import ByteRange
from tests.tiny_models import config_json, make_tiny

ROW = 1152
TABLE = Table(ByteRange(3, 5_000, 5_000 + 49_152 * ROW), 49_152)


def span(row: int) -> tuple[int, int]:
    return 5_000 + row * ROW, 5_000 + (row + 1) * ROW


@given(st.lists(st.integers(-3, TABLE.rows + 3), max_size=200))
def test_every_row_of_the_table_is_brought_by_few_reads_that_are_far_apart(rows: list[int]) -> None:
    reads = ranges_of_rows(TABLE, rows)
    own = [row for row in rows if 0 <= row < TABLE.rows]
    for row in own:
        start, end = span(row)
        assert any(read.start <= start and end <= read.end for read in reads)
    assert len(reads) <= MOST_READS
    assert all(after.start - before.end >= JOINED_BYTES for before, after in pairwise(reads))
    for read in reads:
        assert read.shard == 3
        assert TABLE.whole.start <= read.start < read.end <= TABLE.whole.end
        if read != TABLE.whole:  # nothing at its ends that nobody asked for
            assert (read.start - 5_000) // ROW in own
            assert (read.end - 5_000) // ROW - 1 in own


def test_neighbours_come_together() -> None:
    near = JOINED_BYTES // ROW
    reads = ranges_of_rows(TABLE, [100, 100 + near, 100 + 2 * near, 5_000])
    assert reads == (ByteRange(3, span(100)[0], span(100 + 2 * near)[1]), ByteRange(3, *span(5_000)))


def test_where_too_many_reads_were_needed_it_is_the_whole_table() -> None:
    far = JOINED_BYTES // ROW + 2
    assert len(ranges_of_rows(TABLE, range(0, far * MOST_READS, far))) == MOST_READS
    assert ranges_of_rows(TABLE, range(0, far * (MOST_READS + 1), far)) == (TABLE.whole,)


def placed(layout: Layout) -> Table | None:
    tensors, at = {}, 100
    for spec in layout.parameters:
        for source in spec.sources:
            size = 2
            for length in source.shape:
                size *= length
            tensors[source.name] = TensorInfo(source.name, "BF16", source.shape, at, at + size)
            at += size
    shards = [Shard(ObjectInfo("m/model.safetensors", "model.safetensors", at, "etag"), tensors)]
    arena = plan_arena(layout, "float32")
    table = table_of(layout, arena, place_tensors(layout, arena, shards, "here"))
    if table is not None:
        found = tensors["model.embed_tokens.weight"]
        assert table.whole == ByteRange(0, found.start, found.end)
    return table


def test_the_table_is_found_among_all_that_is_placed_and_has_the_rows_of_the_vocabulary() -> None:
    for tied in (False, True):
        table = placed(layout_of(config_json(make_tiny("llama", tie_word_embeddings=tied))))
        assert table is not None
        assert (table.rows, table.row_bytes) == (320, 128)  # as stored: 64 of 2 bytes


def test_where_nothing_is_read_there_is_no_table() -> None:
    layout = layout_of(config_json(make_tiny("llama")))
    assert table_of(layout, plan_arena(layout, "float32"), []) is None
