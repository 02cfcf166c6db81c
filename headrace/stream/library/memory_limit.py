"""`memory_limit`: the bytes of tensors that are being read or wait to be taken stay within it."""

import threading
from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.stream.plan import Chunk, Placement, ReadPlan
from headrace.stream.select import Selection

UNLIMITED = -1
LARGEST_TENSOR = 0


class MemoryLimitTooSmall(HeadraceError):
    """A tensor alone is larger than the limit."""


def limit_bytes(limit: int, selection: Selection, origin: str) -> int | None:
    """The limit in bytes: None for UNLIMITED, the largest tensor's size for LARGEST_TENSOR.

    Args:
        origin: where the number comes from, for the message.

    Raises:
        MemoryLimitTooSmall: naming the largest tensor and its size.
    """
    if limit == UNLIMITED or not selection.tensors:
        return None
    largest = max(selection.tensors, key=lambda tensor: tensor.size_bytes)
    if limit == LARGEST_TENSOR:
        return largest.size_bytes
    if limit < largest.size_bytes:
        raise MemoryLimitTooSmall(
            f"{origin} is {limit:,} bytes, but tensor {largest.name} alone has {largest.size_bytes:,}.",
            remedy=f"Set it to {largest.size_bytes} or more, to 0 (the largest tensor) or to -1 (no limit).",
        )
    return limit


def fit_chunks(plan: ReadPlan, sizes_bytes: Sequence[int], limit: int) -> ReadPlan:
    """The plan with chunks cut so that the buffers of each one fit the limit together.

    Otherwise a chunk of several tensors could wait for room for ever.
    """
    chunks: list[Chunk] = []
    for chunk in plan.chunks:
        pieces: list[Placement] = []
        held_bytes = 0
        for piece in chunk.pieces:  # in order of their buffers
            new_bytes = 0 if pieces and pieces[-1].buffer == piece.buffer else sizes_bytes[piece.buffer]
            if pieces and held_bytes + new_bytes > limit:
                chunks.append(_chunk(pieces))
                pieces, held_bytes, new_bytes = [], 0, sizes_bytes[piece.buffer]
            pieces.append(piece)
            held_bytes += new_bytes
        chunks.append(_chunk(pieces))
    return ReadPlan(tuple(chunks), plan.bytes_total, plan.groups)


def _chunk(pieces: list[Placement]) -> Chunk:
    return Chunk(pieces[0].shard, pieces[0].start, pieces[-1].end, tuple(pieces))


class MemoryGate:
    """Lets a chunk start when there is room for the tensors that begin in it. Chunks are asked for in plan order."""

    def __init__(self, sizes_bytes: Sequence[int], limit: int) -> None:
        self._sizes = sizes_bytes
        self._limit = limit
        self._held: set[int] = set()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def may_start(self, chunk: Chunk) -> bool:
        """See headrace.stream.transfer.seams.Gate."""
        with self._lock:
            new = {piece.buffer for piece in chunk.pieces} - self._held
            size = sum(self._sizes[number] for number in new)
            if self._held_bytes + size > self._limit:
                return False
            self._held |= new
            self._held_bytes += size
            return True

    def release(self, number: int) -> None:
        """The buffer was taken. Whoever runs the transfer has to wake it then."""
        with self._lock:
            if number in self._held:  # an empty one never was
                self._held.remove(number)
                self._held_bytes -= self._sizes[number]

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are being filled or wait."""
        with self._lock:
            return self._held_bytes
