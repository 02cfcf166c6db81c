"""Which bytes hold the rows of the embedding that a prompt needs before the rest of the table. Pure, no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.engine.loading.weights import ArenaPlan
from headrace.models.layout import Layout
from headrace.stream.plan import Placement
from headrace.stream.transfer.hasten import ByteRange

# Rows that lie nearer to each other are read together: a round trip takes longer than what lies between them.
JOINED_BYTES = 64 << 10
# More reads than this would hold up the layers for longer than reading the whole table in order does.
MOST_READS = 64


@dataclass(frozen=True, slots=True)
class Table:
    """Where a checkpoint holds the embedding.

    Attributes:
        whole: its bytes.
        rows: how many there are, one after another.
    """

    whole: ByteRange
    rows: int

    @property
    def row_bytes(self) -> int:
        """Size of one row as it is stored."""
        return (self.whole.end - self.whole.start) // self.rows


def table_of(layout: Layout, arena: ArenaPlan, placements: Sequence[Placement]) -> Table | None:
    """The embedding's bytes; None where nothing is read."""
    (slot,) = (slot for slot in arena.slots if slot.name == layout.embedding)
    for placement in placements:
        if placement.destination == slot.offset and placement.group == slot.group:
            return Table(ByteRange(placement.shard, placement.start, placement.end), slot.shape[0])
    return None


def ranges_of_rows(table: Table, rows: Iterable[int]) -> tuple[ByteRange, ...]:
    """The reads that bring these rows: in order, without overlap, MOST_READS at the most. Others than the table's own
    are left out."""
    size = table.row_bytes
    reads: list[tuple[int, int]] = []
    for row in sorted({row for row in rows if 0 <= row < table.rows}):
        start = table.whole.start + row * size
        if reads and start - reads[-1][1] < JOINED_BYTES:
            reads[-1] = (reads[-1][0], start + size)
        else:
            reads.append((start, start + size))
    if len(reads) > MOST_READS:
        return (table.whole,)
    return tuple(ByteRange(table.whole.shard, start, end) for start, end in reads)
