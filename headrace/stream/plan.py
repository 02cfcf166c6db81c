"""The read plan: which byte range of which object goes where. A pure function of data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.stream.checkpoint.header import DTYPE_BITS

DEFAULT_CHUNK_BYTES = 8 << 20
_SMALL_SHARE = 16  # of a window; what is larger is worth a read of its own


class Columns(msgspec.Struct, frozen=True, gc=False):
    """Which part of each row is kept: bytes [first, last) of every `row_bytes`, whole elements as stored."""

    row_bytes: int
    first: int
    last: int


class Placement(msgspec.Struct, frozen=True, gc=False):
    """One contiguous range of an object and where it goes. There may be 10^5 of them: see TensorInfo.

    Attributes:
        shard: index of the object.
        start, end: bytes of the object.
        destination: byte offset in the memory that the range goes to.
        group: what is complete together; lower groups are read first.
        source_dtype, dtype: safetensors names; where they differ the bytes are converted on the way.
        buffer: the number of the memory that `destination` counts in.
        columns: None keeps every byte; otherwise start..end are whole rows of which these columns arrive,
            one row after another.
    """

    shard: int
    start: int
    end: int
    destination: int
    group: int
    source_dtype: str
    dtype: str
    buffer: int = 0
    columns: Columns | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One ranged read: bytes [start, end) of an object, cut into adjacent pieces."""

    shard: int
    start: int
    end: int
    pieces: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All reads, in the order in which they are to be started.

    Attributes:
        chunks: the reads.
        bytes_total: bytes that are read.
        groups: bytes (as read) of each group.
    """

    chunks: tuple[Chunk, ...]
    bytes_total: int
    groups: dict[int, int]


def plan_reads(
    placements: Sequence[Placement], chunk_bytes: int = DEFAULT_CHUNK_BYTES, *, window_bytes: int = 0
) -> ReadPlan:
    """Order placements by group, join neighbours and cut what is large.

    Small placements (1/16 of `window_bytes` at the most) that follow each other within a window are read as they lie in
    the objects, whatever their groups: 10^5 of them in an order of the caller's own would be as many reads.

    Every byte of every placement is in exactly one piece. Pieces of converted tensors hold whole elements,
    those of placements with columns whole rows, so that each can be dealt with by itself; only a row longer
    than `chunk_bytes` makes a chunk that is.
    """
    assert chunk_bytes >= 16
    chunks: list[Chunk] = []
    pieces: list[Placement] = []
    groups: dict[int, int] = {}
    ordered = sorted(placements, key=lambda p: (p.group, p.shard, p.start))
    for placement in _in_windows(ordered, window_bytes) if window_bytes else ordered:
        at, end = placement.start, placement.end
        groups[placement.group] = groups.get(placement.group, 0) + end - at
        if at == end:
            continue
        if pieces and (pieces[-1].end != at or pieces[-1].shard != placement.shard):
            chunks.append(chunk_of(pieces))
            pieces = []
        begin = pieces[0].start if pieces else at
        if end - begin <= chunk_bytes:
            pieces.append(placement)
            continue
        unit = unit_bytes(placement)
        while at < end:
            room = max(chunk_bytes - (at - begin), 0)
            room -= room % unit
            if room == 0 and pieces:
                chunks.append(chunk_of(pieces))
                pieces, begin = [], at
                continue
            cut = min(end, at + max(room, unit))
            pieces.append(part(placement, at, cut))
            at = cut
    if pieces:
        chunks.append(chunk_of(pieces))
    return ReadPlan(tuple(chunks), sum(groups.values()), groups)


def _in_windows(ordered: Sequence[Placement], window_bytes: int) -> Iterator[Placement]:
    """The placements, of which small ones that follow each other within a window lie in the order of the objects."""
    window: list[Placement] = []
    size = 0
    for placement in ordered:
        length = placement.end - placement.start
        small = length <= window_bytes // _SMALL_SHARE
        if not small or size + length > window_bytes:
            yield from sorted(window, key=lambda p: (p.shard, p.start))
            window, size = [], 0
        if small:
            window.append(placement)
            size += length
        else:
            yield placement
    yield from sorted(window, key=lambda p: (p.shard, p.start))


def split(chunk: Chunk, first_bytes: int) -> tuple[Chunk, Chunk | None]:
    """A chunk as one of about `first_bytes` (at least a row or an element) and the rest, None where none is."""
    cut = chunk.start + first_bytes
    if first_bytes >= chunk.end - chunk.start:
        return chunk, None
    head: list[Placement] = []
    tail: list[Placement] = []
    for piece in chunk.pieces:
        if piece.end <= cut:
            head.append(piece)
        elif piece.start >= cut and head:
            tail.append(piece)
        else:
            unit = unit_bytes(piece)
            whole = max(cut - piece.start, 0) // unit * unit
            if not head:
                whole = max(whole, unit)
            middle = min(piece.start + whole, piece.end)
            if middle > piece.start:
                head.append(part(piece, piece.start, middle))
            if middle < piece.end:
                tail.append(part(piece, middle, piece.end))
    return chunk_of(head), chunk_of(tail) if tail else None


def unit_bytes(piece: Placement) -> int:
    """What may not be cut: a row where columns are kept, else an element (a byte for smaller ones)."""
    if piece.columns is not None:
        return piece.columns.row_bytes
    return max(1, DTYPE_BITS[piece.source_dtype] // 8)


def placed_bytes(piece: Placement) -> int:
    """How many bytes a piece takes where it goes: columns cut, elements converted."""
    size = piece.end - piece.start
    if piece.columns is not None:
        size = size // piece.columns.row_bytes * (piece.columns.last - piece.columns.first)
    return size * DTYPE_BITS[piece.dtype] // DTYPE_BITS[piece.source_dtype]


def part(placement: Placement, start: int, end: int) -> Placement:
    """Bytes [start, end) of a placement, which are whole units of it, and where they go."""
    before = Placement(
        placement.shard,
        placement.start,
        start,
        placement.destination,
        placement.group,
        placement.source_dtype,
        placement.dtype,
        placement.buffer,
        placement.columns,
    )
    return Placement(
        placement.shard,
        start,
        end,
        placement.destination + placed_bytes(before),
        placement.group,
        placement.source_dtype,
        placement.dtype,
        placement.buffer,
        placement.columns,
    )


def chunk_of(pieces: Sequence[Placement]) -> Chunk:
    """Adjacent pieces of one object as one read."""
    return Chunk(pieces[0].shard, pieces[0].start, pieces[-1].end, tuple(pieces))
