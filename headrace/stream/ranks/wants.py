"""What the ranks of one machine want together: one plan of reads, the same on every rank. Pure functions."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.plan import Chunk, Placement, ReadPlan, placed_bytes, unit_bytes

_DTYPES = tuple(DTYPE_BITS)
_BLOCK_BYTES = 1 << 20
_FIELDS = 5  # shard, start, end, group, index of the source's dtype


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """The reads of one machine.

    Attributes:
        chunks: what is read, in the order in which reads are to be started. They have no pieces.
        wanted_by: for each chunk, its ranks as bits: bit n is the machine's n-th rank.
        bytes_total: bytes that are read.
    """

    chunks: tuple[Chunk, ...]
    wanted_by: tuple[int, ...]
    bytes_total: int


def pack_wants(placements: Sequence[Placement]) -> bytes:
    """The ranges that a rank wants, to be sent to the others: five little-endian int64 for each."""
    import numpy as np

    rows = [(p.shard, p.start, p.end, p.group, _DTYPES.index(p.source_dtype)) for p in placements]
    return np.array(rows, dtype="<i8").tobytes()


def plan_machine(wants: Sequence[bytes], sizes: Sequence[int], chunk_bytes: int) -> MachinePlan:
    """The union of what the ranks want, every byte of it in one chunk.

    Args:
        wants: of each rank, as `pack_wants` gives them.
        sizes: bytes of each shard.
        chunk_bytes: the largest read.

    A range that several ranks want takes the earliest place that one of them gives it. Chunks are cut between
    elements, but anywhere within a row, and where they can be at a whole MiB of the object: then what a manifest
    has a checksum of comes to one rank, which can prove it.
    """
    import numpy as np

    bases = np.array([0, *accumulate(sizes)], dtype="<i8")
    tables = [np.frombuffer(packed, dtype="<i8").reshape(-1, _FIELDS) for packed in wants]
    spans = [_spans(table, bases) for table in tables]
    union = _union(list(dict.fromkeys(wants)), bases)
    chunks = _cut(union, chunk_bytes)
    chunk_spans = np.array([(c.start, c.end) for c in chunks], dtype="<i8").reshape(-1, 2)
    chunk_spans += bases[[chunk.shard for chunk in chunks]].reshape(-1, 1)
    in_file_order = np.argsort(chunk_spans[:, 0], kind="stable")
    starts, ends = chunk_spans[in_file_order, 0], chunk_spans[in_file_order, 1]
    wanted_by = [0] * len(chunks)
    for rank, span in enumerate(spans):
        for at in np.flatnonzero(_covered(starts, ends, span)).tolist():
            wanted_by[in_file_order[at]] |= 1 << rank
    return MachinePlan(tuple(chunks), tuple(wanted_by), sum(chunk.end - chunk.start for chunk in chunks))


def _cut(union: Sequence[Placement], chunk_bytes: int) -> list[Chunk]:
    """Disjoint ranges in the order of their groups, neighbours joined, as reads of `chunk_bytes` at the most."""
    assert chunk_bytes >= 16
    step = chunk_bytes - chunk_bytes % _BLOCK_BYTES
    chunks: list[Chunk] = []
    begin, end, shard = 0, 0, -1  # of the chunk that may go on

    def close() -> None:
        nonlocal begin
        if begin < end:
            chunks.append(Chunk(shard, begin, end, ()))
        begin = end

    for placement in sorted(union, key=lambda p: (p.group, p.shard, p.start)):
        if (placement.shard, placement.start) != (shard, end):
            close()
            shard, begin, end = placement.shard, placement.start, placement.start
        unit = unit_bytes(placement)
        while end < placement.end:
            limit = begin + chunk_bytes
            if step and (begin // step + 1) * step >= begin + unit:
                limit = min(limit, (begin // step + 1) * step)
            whole = placement.end if placement.end <= limit else limit - (limit - placement.start) % unit
            end = max(end, whole)
            if placement.end >= limit:
                close()
    close()
    return chunks


def _spans(table: Any, bases: Any) -> Any:
    """[start, end) of each range that is not empty, on one axis on which the shards lie one after another."""
    table = table[table[:, 1] < table[:, 2]]
    return table[:, 1:3] + bases[table[:, 0]].reshape(-1, 1)


def _covered(starts: Any, ends: Any, spans: Any) -> Any:
    """Which of the disjoint, sorted intervals [starts, ends) some span reaches into."""
    import numpy as np

    change = np.zeros(len(starts) + 1, dtype="<i8")
    np.add.at(change, np.searchsorted(ends, spans[:, 0], side="right"), 1)
    np.add.at(change, np.searchsorted(starts, spans[:, 1], side="left"), -1)
    return np.cumsum(change[:-1]) > 0


def _union(wants: Sequence[bytes], bases: Any) -> list[Placement]:
    """Disjoint ranges that together are what all want. Destinations mean nothing in them."""
    import numpy as np

    table: Any = np.concatenate([np.frombuffer(packed, dtype="<i8").reshape(-1, _FIELDS) for packed in wants])
    table = table[table[:, 1] < table[:, 2]]
    if not len(table):
        return []
    spans = _spans(table, bases)
    table[:, 3] = _earliest(spans, table[:, 3])
    cuts = np.unique(spans)
    first, end = np.searchsorted(cuts, spans[:, 0]), np.searchsorted(cuts, spans[:, 1])
    counts = end - first
    # The segments of each range, one row for each: range n covers segments first[n] .. end[n] - 1.
    rows = np.repeat(np.arange(len(table)), counts)
    segments = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[rows]
    segment, chosen = np.unique(segments, return_index=True)
    source = table[rows[chosen]]
    # What goes on in the same group is one range: fewer for all that follows.
    begins = np.ones(len(segment), dtype=bool)
    begins[1:] = (cuts[segment[1:]] != cuts[segment[:-1] + 1]) | (
        source[1:, [0, 3, 4]] != source[:-1, [0, 3, 4]]
    ).any(axis=1)
    ends = cuts[segment[np.append(np.flatnonzero(begins)[1:] - 1, len(segment) - 1)] + 1]
    source, starts = source[begins], cuts[segment[begins]]
    shift = bases[source[:, 0]]
    columns = (source[:, 0], starts - shift, ends - shift, source[:, 3], source[:, 4])
    return [
        Placement(shard, start, stop, 0, group, _DTYPES[dtype], _DTYPES[dtype])
        for shard, start, stop, group, dtype in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _earliest(spans: Any, groups: Any) -> Any:
    """The group of each range, or the lowest of those that it hangs together with by overlaps.

    So a range is read in one go, also where another rank wants a part of it much earlier: a rank that has room
    for one tensor only can always complete the one that it has begun.
    """
    import numpy as np

    order = np.argsort(spans[:, 0], kind="stable")
    reach = np.maximum.accumulate(spans[order, 1])
    begins = np.concatenate([[True], spans[order, 0][1:] >= reach[:-1]])
    knot = np.empty(len(order), dtype="<i8")
    knot[order] = np.cumsum(begins) - 1
    lowest = np.full(knot.max() + 1, np.iinfo("<i8").max)
    np.minimum.at(lowest, knot, groups)
    return lowest[knot]


def pieces_of(placements: Sequence[Placement], chunks: Sequence[Chunk]) -> list[tuple[Placement, ...]]:
    """For each chunk the placements (whole, not cut) that reach into it."""
    order = sorted(range(len(chunks)), key=lambda n: (chunks[n].shard, chunks[n].start))
    ends = [(chunks[n].shard, chunks[n].end) for n in order]
    found: list[list[Placement]] = [[] for _ in chunks]
    for placement in placements:
        at = bisect_left(ends, (placement.shard, placement.start + 1))
        while placement.start < placement.end and at < len(order):
            chunk = chunks[order[at]]
            if (chunk.shard, chunk.start) >= (placement.shard, placement.end):
                break
            found[order[at]].append(placement)
            at += 1
    return [tuple(pieces) for pieces in found]


def uncut(plan: ReadPlan) -> list[Placement]:
    """The placements that a plan's pieces were cut from: what goes on in object and memory is one again."""
    pieces = sorted(
        (piece for chunk in plan.chunks for piece in chunk.pieces), key=lambda p: (p.shard, p.start)
    )
    whole: list[Placement] = []
    for piece in pieces:
        if whole and _goes_on(whole[-1], piece):
            last = whole.pop()
            whole.append(replace(last, end=piece.end))
        else:
            whole.append(piece)
    return sorted(whole, key=lambda p: (p.group, p.shard, p.start))


def _goes_on(last: Placement, piece: Placement) -> bool:
    return (
        last.end == piece.start
        and last.destination + placed_bytes(last) == piece.destination
        and replace(last, start=0, end=0, destination=0) == replace(piece, start=0, end=0, destination=0)
    )
