"""Bytes that are wanted before their turn: cut out of chunks that nobody has taken yet. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.stream.plan import Chunk, Placement, chunk_of, part, unit_bytes


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes [start, end) of the plan's object number `shard`."""

    shard: int
    start: int
    end: int


def joined(ranges: Iterable[ByteRange]) -> tuple[ByteRange, ...]:
    """In order, without overlap and without empty ones."""
    result: list[ByteRange] = []
    for each in sorted(ranges):
        if each.start >= each.end:
            continue
        if result and result[-1].shard == each.shard and each.start <= result[-1].end:
            result[-1] = ByteRange(each.shard, result[-1].start, max(result[-1].end, each.end))
        else:
            result.append(each)
    return tuple(result)


def overlap_bytes(chunk: Chunk, ranges: Sequence[ByteRange]) -> int:
    """How many bytes of a chunk lie in the ranges, which do not overlap."""
    return sum(
        max(0, min(chunk.end, each.end) - max(chunk.start, each.start))
        for each in ranges
        if each.shard == chunk.shard
    )


def cut_out(chunk: Chunk, ranges: Sequence[ByteRange]) -> tuple[list[Chunk], list[Chunk]]:
    """A chunk as the reads that hold what is wanted of it, and those that hold the rest; each in order.

    What may not be cut (an element that is converted, a row of which columns are kept) stays whole.

    Args:
        ranges: in order, without overlap.
    """
    if not overlap_bytes(chunk, ranges):
        return [], [chunk]
    parts: tuple[list[list[Placement]], list[list[Placement]]] = ([], [])
    follows: list[Placement] | None = None  # the run that the next piece may prolong

    def add(piece: Placement, start: int, end: int, runs: list[list[Placement]]) -> None:
        nonlocal follows
        if start == end:
            return
        if not runs or follows is not runs[-1]:
            runs.append([])
        follows = runs[-1]
        follows.append(piece if (start, end) == (piece.start, piece.end) else part(piece, start, end))

    wanted, rest = parts
    for piece in chunk.pieces:
        at = piece.start
        for start, end in _in_whole_units(piece, ranges):
            add(piece, at, start, rest)
            add(piece, start, end, wanted)
            at = end
        add(piece, at, piece.end, rest)
    return [chunk_of(run) for run in wanted], [chunk_of(run) for run in rest]


def _in_whole_units(piece: Placement, ranges: Sequence[ByteRange]) -> Iterator[tuple[int, int]]:
    """What of a piece is wanted, widened to whole units; in order, without overlap."""
    unit = unit_bytes(piece)
    last: tuple[int, int] | None = None
    for each in ranges:
        start, end = max(each.start, piece.start), min(each.end, piece.end)
        if each.shard != piece.shard or start >= end:
            continue
        start -= (start - piece.start) % unit
        end = min(piece.end, end + (piece.start - end) % unit)
        if last is not None and start <= last[1]:
            last = (last[0], end)
            continue
        if last is not None:
            yield last
        last = (start, end)
    if last is not None:
        yield last
