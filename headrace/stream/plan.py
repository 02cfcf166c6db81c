"""The read plan: which byte range of which object goes where. A pure function of data."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.stream.header import DTYPE_BITS

DEFAULT_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Placement:
    """One contiguous range of an object and where it goes.

    Attributes:
        shard: index of the object.
        start, end: bytes of the object.
        destination: byte offset in the memory that the weights live in.
        group: what is complete together; lower groups are read first.
        source_dtype, dtype: safetensors names; where they differ the bytes are converted on the way.
    """

    shard: int
    start: int
    end: int
    destination: int
    group: int
    source_dtype: str
    dtype: str


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


def plan_reads(placements: Sequence[Placement], chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> ReadPlan:
    """Order placements by group, join neighbours and cut what is large.

    Every byte of every placement is in exactly one piece. Pieces of converted tensors hold whole elements,
    so that each can be converted by itself.
    """
    assert chunk_bytes >= 16
    chunks: list[Chunk] = []
    pieces: list[Placement] = []
    groups: dict[int, int] = {}

    def flush() -> None:
        if pieces:
            chunks.append(Chunk(pieces[0].shard, pieces[0].start, pieces[-1].end, tuple(pieces)))
            pieces.clear()

    for placement in sorted(placements, key=lambda p: (p.group, p.shard, p.start)):
        groups[placement.group] = groups.get(placement.group, 0) + placement.end - placement.start
        item_bytes = max(1, DTYPE_BITS[placement.source_dtype] // 8)
        at = placement.start
        while at < placement.end:
            if pieces and (pieces[-1].shard, pieces[-1].end) != (placement.shard, at):
                flush()
            room = chunk_bytes - (pieces[-1].end - pieces[0].start if pieces else 0)
            room -= room % item_bytes
            if room == 0:
                flush()
                continue
            end = min(placement.end, at + room)
            pieces.append(_part(placement, at, end))
            at = end
    flush()
    return ReadPlan(tuple(chunks), sum(groups.values()), groups)


def _part(placement: Placement, start: int, end: int) -> Placement:
    offset = start - placement.start
    source_bits, bits = DTYPE_BITS[placement.source_dtype], DTYPE_BITS[placement.dtype]
    return Placement(
        placement.shard,
        start,
        end,
        placement.destination + offset * bits // source_bits,
        placement.group,
        placement.source_dtype,
        placement.dtype,
    )
