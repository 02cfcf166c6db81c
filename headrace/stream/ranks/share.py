"""Which chunks of the machine's plan this rank reads, and where to: the next one that nobody has taken."""

import threading
from collections.abc import Sequence

from headrace.stream.plan import Chunk, Placement, ReadPlan, part
from headrace.stream.ranks.ring import Ring
from headrace.stream.ranks.tickets import Tickets
from headrace.stream.ranks.wants import MachinePlan


def is_direct(chunk: Chunk, pieces: Sequence[Placement], wanted_by: int, place: int) -> bool:
    """Whether a rank can receive a chunk where it belongs: nobody else wants it, and its bytes stay as they are."""
    if wanted_by != 1 << place:
        return False
    at = chunk.start
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if (
            piece.source_dtype != piece.dtype
            or piece.columns is not None
            or max(piece.start, chunk.start) != at
        ):
            return False
        at = min(piece.end, chunk.end)
    return at == chunk.end


def reading_plan(
    plan: MachinePlan, wanted: Sequence[Sequence[Placement]], direct: Sequence[bool]
) -> ReadPlan:
    """The machine's plan as one rank would carry it out: each chunk is a group, known by its number.

    A chunk goes to the rank's own buffers where it is direct, otherwise to a buffer of its own, whose number is
    `slot_buffer` of the chunk's.
    """
    chunks: list[Chunk] = []
    for number, (chunk, pieces) in enumerate(zip(plan.chunks, wanted, strict=True)):
        shard, start, end = chunk.shard, chunk.start, chunk.end
        own: tuple[Placement, ...] = (
            Placement(shard, start, end, 0, number, "U8", "U8", slot_buffer(number)),
        )
        if direct[number]:
            in_order = sorted(pieces, key=lambda piece: piece.start)
            own = tuple(_in_group(part(p, max(p.start, start), min(p.end, end)), number) for p in in_order)
        chunks.append(Chunk(shard, start, end, own))
    sizes = {number: chunk.end - chunk.start for number, chunk in enumerate(plan.chunks)}
    return ReadPlan(tuple(chunks), plan.bytes_total, sizes)


def slot_buffer(number: int) -> int:
    """The number of the buffer that stands for a chunk's slot. Its own inverse; a rank's buffers count from 0."""
    return -1 - number


def _in_group(piece: Placement, group: int) -> Placement:
    return Placement(
        piece.shard,
        piece.start,
        piece.end,
        piece.destination,
        group,
        piece.source_dtype,
        piece.dtype,
        piece.buffer,
        piece.columns,
    )


class TicketShare:
    """The chunks whose tickets this rank has drawn. See headrace.stream.transfer.seams.Share; safe for threads."""

    def __init__(self, tickets: Tickets, ring: Ring, direct: Sequence[bool]) -> None:
        self._tickets, self._ring, self._direct = tickets, ring, direct
        self._lock = threading.Lock()
        self._drawn: int | None = None
        self._latest: int | None = None
        self._slots: dict[int, int] = {}
        self._stopped = False

    def reads(self, chunk: Chunk) -> bool | None:
        """Draw a ticket when the last one was used and there is a slot; earlier chunks are then others'."""
        number = chunk.pieces[0].group
        with self._lock:
            if number == self._latest:
                return True  # a part of it
            if self._drawn is None:
                if self._stopped:
                    return False
                slot = self._ring.take()
                if slot is None:
                    return None
                drawn = self._tickets.take()
                if drawn is None or self._direct[drawn]:
                    self._ring.give_back(slot)
                else:
                    self._slots[drawn] = slot
                self._drawn = drawn if drawn is not None else len(self._direct)
            if number < self._drawn:
                return False
            self._drawn, self._latest = None, number
            return True

    def slot(self, number: int) -> int:
        """The slot of a chunk that this rank reads."""
        with self._lock:
            return self._slots[number]

    def stop(self) -> None:
        """Take no further chunk."""
        with self._lock:
            self._stopped = True
