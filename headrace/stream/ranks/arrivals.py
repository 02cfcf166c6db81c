"""Chunks that lie in a slot and wait to be copied, and the order in which this rank has room for them."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.stream.plan import Chunk, Placement
from headrace.stream.ranks.deliver import parts_in
from headrace.stream.transfer.seams import Gate


@dataclass(slots=True)
class Arrival:
    """A chunk in a slot of the rank at `owner`, of which this rank has still to copy some placements."""

    number: int
    view: memoryview
    owner: int
    slot: int
    missing: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def copied(self, count: int) -> bool:
        """Whether those were the last placements: then the bytes are let go of."""
        with self.lock:
            self.missing -= count
            if self.missing:
                return False
        self.view.release()
        return True


@dataclass(frozen=True, slots=True)
class Job:
    """Copy from an arrival what it holds of some placements."""

    arrival: Arrival
    placements: Sequence[Placement]


class Admission:
    """Says what may be copied now. Safe for threads.

    Without a gate that is whatever has arrived. With one it is asked placement by placement in the plan's order:
    what comes too early waits in its slot, so that room is never held by what cannot be completed.
    """

    def __init__(
        self, chunks: Sequence[Chunk], wanted: Sequence[Sequence[Placement]], gate: Gate | None
    ) -> None:
        """Args: wanted: this rank's placements in each chunk."""
        self._chunks, self._wanted, self._gate = chunks, wanted, gate
        self._lock = threading.Lock()
        self._arrived: dict[int, Arrival] = {}
        self._seen: set[int] = set()
        self._order = self._in_order()
        self._next = next(self._order, None)

    def arrived(self, arrival: Arrival) -> list[Job]:
        """What may be copied now that a chunk is there."""
        with self._lock:
            assert arrival.number not in self._seen, "a chunk was read twice"
            self._seen.add(arrival.number)
            if self._gate is None:
                return [Job(arrival, self._wanted[arrival.number])]
            self._arrived[arrival.number] = arrival
            return self._admitted(self._gate)

    def again(self) -> list[Job]:
        """What may be copied now that there may be more room."""
        if self._gate is None:
            return []
        with self._lock:
            return self._admitted(self._gate)

    def _in_order(self) -> Iterator[tuple[int, Placement]]:
        for number, placements in enumerate(self._wanted):
            for placement in sorted(placements, key=lambda placement: placement.start):
                yield number, placement

    def _admitted(self, gate: Gate) -> list[Job]:
        admitted: dict[int, tuple[Arrival, list[Placement]]] = {}
        while self._next is not None and (arrival := self._arrived.get(self._next[0])) is not None:
            number, placement = self._next
            chunk = self._chunks[number]
            piece = parts_in(placement, chunk.start, chunk.end)
            if not gate.may_start(Chunk(piece.shard, piece.start, piece.end, (piece,))):
                break
            admitted.setdefault(number, (arrival, []))[1].append(placement)
            self._next = next(self._order, None)
            if self._next is None or self._next[0] != number:
                del self._arrived[number]
        return [Job(*each) for each in admitted.values()]
