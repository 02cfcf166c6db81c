"""A load that the ranks of one machine share: each byte comes from the store once, whoever wants it.

Every rank has the plan of all their reads and takes chunks of it from one queue. A chunk is read into a slot of
memory that the ranks share; who wants something of it copies that, and then the slot is free again. A chunk
that nobody else wants is received where it belongs. Machines of one group know nothing of each other.
"""

import gc
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import TypedDict, Unpack

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Store
from headrace.store.threads import start
from headrace.stream.plan import Placement, ReadPlan
from headrace.stream.ranks.arrivals import Admission, Arrival, Job
from headrace.stream.ranks.buffers import OwnBuffers
from headrace.stream.ranks.deliver import deliver
from headrace.stream.ranks.errors import PeerFailed, PeerLost
from headrace.stream.ranks.forget import forget_locals
from headrace.stream.ranks.links import Links
from headrace.stream.ranks.meeting import Machine, told
from headrace.stream.ranks.messages import Copied, Ended, Leaving, Message, Ready
from headrace.stream.ranks.share import TicketShare, is_direct, reading_plan, slot_buffer
from headrace.stream.ranks.wants import pieces_of, uncut
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.budget import ConnectionBudget
from headrace.stream.transfer.crew import Abandonment
from headrace.stream.transfer.ledger import Ledger
from headrace.stream.transfer.progress import Progress
from headrace.stream.transfer.seams import Buffers, Gate, Verifier
from headrace.stream.transfer.transfer import Cancelled, Transfer

SILENCE_TIMEOUT_S = 120.0
_DELIVERERS = 2
_logger = logging.getLogger(__name__)


class ReadOptions(TypedDict, total=False):
    """What Transfer may be told; it bounds and counts a rank's own reads."""

    concurrency: int | None
    readers: Sequence[Reader]
    policy: RetryPolicy | None
    verifier: Verifier | None
    deadline_s: float | None
    hedge: bool
    staging_bytes: int | None
    patience_s: float
    budget: ConnectionBudget


class DistributedTransfer:
    """A running load of one rank, with Transfer's interface. What ends it on one rank ends it on all of a machine.

    A rank that has everything takes no further chunk but completes those that it is reading, since others may
    want them: `wait`, and the end of `finished_groups`, last until then. What happens to others after that is
    not its failure any more.

    Attributes:
        abandon: cancels it soon; see Transfer.
    """

    def __init__(
        self,
        machine: Machine,
        plan: ReadPlan,
        items: Sequence[ObjectInfo],
        store: Store,
        memory: memoryview | Buffers,
        *,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        gate: Gate | None = None,
        rate_limit_mb_s: float | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """Start at once; see `start_distributed` in `start`. The machine belongs to the transfer from here on."""
        self._machine, self._place = machine, machine.place
        self._chunks = machine.plan.chunks
        placements = uncut(plan)
        self._wanted = pieces_of(placements, self._chunks)
        self._buffers = OwnBuffers(memory, placements)
        self._admission = Admission(self._chunks, self._wanted, gate)
        self._direct = [
            gate is None and is_direct(chunk, pieces, wanted_by, machine.place)
            for chunk, pieces, wanted_by in zip(
                self._chunks, self._wanted, machine.plan.wanted_by, strict=True
            )
        ]
        self._ledger = Ledger(plan)
        self._share = TicketShare(machine.tickets, machine.ring, self._direct)
        if self._ledger.over.is_set():  # there is nothing that it wants
            self._share.stop()
        self._has_read = False  # every chunk that this rank took is there for the others
        self._told = False  # the others know how it ended here
        self._final: Progress | None = None
        self._kept = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        abandonment = Abandonment()
        self.abandon = abandonment.tell

        def end_if_abandoned() -> None:
            if abandonment.told:
                self.cancel()

        self._links = Links(machine.links, self._received, self._lost, silence_timeout_s, end_if_abandoned)
        try:
            self._reading = Transfer(
                reading_plan(machine.plan, self._wanted, self._direct),
                items,
                store,
                self._buffer,
                share=self._share,
                rate_limit_mb_s=rate_limit_mb_s,
                **options,
            )
        except BaseException as error:
            self._fail(error)
            self._links.close()
            machine.close()
            raise
        works = [self._announce, *[self._deliver] * _DELIVERERS]
        self._workers = [
            threading.Thread(target=self._guarded, args=(work,), name=f"ranks-{number}", daemon=True)
            for number, work in enumerate(works)
        ]
        self._keeper = threading.Thread(target=self._keep, name="ranks-links", daemon=True)
        self._start_threads()

    def _start_threads(self) -> None:
        try:
            for thread in (*self._workers, self._keeper):  # which waits for the others' end
                start(thread)
        except BaseException as error:  # an interrupt, too: the caller never gets this load, to cancel it
            self._fail(error if isinstance(error, Exception) else Cancelled())
            self._keep()
            raise

    # What the caller sees.

    def progress(self) -> Progress:
        """How far this rank is. Requests, retries, hedges and connections are those of its own reads."""
        ledger = self._ledger
        with ledger.lock:
            reading = self._final or self._reading.progress()
            ledger.retries, ledger.hedges = reading.retries, reading.hedges
            ledger.hedged_bytes, ledger.requests = reading.hedged_bytes, reading.requests
            return ledger.progress(0, reading.concurrency)

    @property
    def bytes_read(self) -> int:
        """Bytes that this rank has read from the store, for itself or others."""
        with self._ledger.lock:
            return (self._final or self._reading.progress()).bytes_done

    def finished_groups(self) -> Iterator[int]:
        """Each group's number once, as it completes; those without bytes first. Raises what ended the load."""
        yield from self._ledger.finished_groups()
        self.wait()

    def wait_group(self, group: int) -> None:
        """Return when every byte of the group is in place. Raises what ended the load."""
        self._ledger.wait_group(group)

    def wait(self) -> None:
        """Return when every byte is in place, nobody waits for this rank and no thread of it is left.

        Raises what ended it.
        """
        self._keeper.join()
        self._ledger.raise_failure()

    def wake(self) -> None:
        """Ask the gate again."""
        self._start_jobs(self._admission.again())

    def cancel(self) -> None:
        """End the load, on the other ranks too. A rank that has everything only stops to read more."""
        if not self._ledger.over.is_set():
            self._fail(Cancelled())

    # Reading for all, and what the others say.

    def _buffer(self, number: int) -> memoryview:
        if number >= 0:
            return self._buffers.view(number)
        number = slot_buffer(number)
        return self._machine.ring.view(self._share.slot(number), self._size(number))

    def _size(self, number: int) -> int:
        return self._chunks[number].end - self._chunks[number].start

    def _announce(self) -> None:
        """Tell of each chunk that this rank has read whoever wants it."""
        for number in self._reading.finished_groups():
            chunk = self._chunks[number]
            if self._direct[number]:
                self._count(
                    (piece, min(piece.end, chunk.end) - max(piece.start, chunk.start))
                    for piece in self._wanted[number]
                )
                continue
            slot, wanted_by = self._share.slot(number), self._machine.plan.wanted_by[number]
            readers = [place for place in range(len(self._machine.ranks)) if wanted_by >> place & 1]
            self._machine.ring.publish(slot, readers)
            for reader in readers:
                if reader != self._place:
                    self._links.send(reader, Ready(number, slot))
            if self._place in readers:
                self._arrived(number, self._place, slot)
        self._reading.wait()
        with self._ledger.lock:
            self._has_read = True
        self._leave_when_done()

    def _received(self, place: int, message: Message) -> None:
        match message:
            case Ready(number, slot):
                self._arrived(number, place, slot)
            case Copied(slot):
                self._free(slot, place)
            case Ended(rank, "lost", text):
                self._fail(PeerLost(rank, text))
            case Ended(rank, _, text):
                self._fail(PeerFailed(rank, text))

    def _lost(self, rank: int, cause: str) -> None:
        self._fail(PeerLost(rank, cause))

    def _free(self, slot: int, reader: int) -> None:
        if self._machine.ring.copied(slot, reader):
            self._reading.wake()

    # Copying what this rank wants.

    def _arrived(self, number: int, owner: int, slot: int) -> None:
        slots = self._machine.ring if owner == self._place else self._machine.slots[owner]
        view = slots.view(slot, self._size(number))
        self._start_jobs(
            self._admission.arrived(Arrival(number, view, owner, slot, len(self._wanted[number])))
        )

    def _start_jobs(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._jobs.put(job)

    def _deliver(self) -> None:
        while (job := self._jobs.get()) is not None and self._ledger.failure is None:
            arrival, at = job.arrival, self._chunks[job.arrival.number].start
            sizes = [
                (each, deliver(arrival.view, at, each, self._buffers.view(each.buffer)))
                for each in job.placements
            ]
            last = arrival.copied(len(sizes))
            self._count(sizes)
            if last and arrival.owner == self._place:
                self._free(arrival.slot, arrival.owner)
            elif last:
                self._links.send(arrival.owner, Copied(arrival.slot))
            del job, arrival, sizes

    def _count(self, placed: Iterable[tuple[Placement, int]]) -> None:
        """So many bytes, as read, of these placements are in place."""
        groups: dict[int, int] = {}
        buffers: dict[int, int] = {}
        for placement, size in placed:
            groups[placement.group] = groups.get(placement.group, 0) + size
            buffers[placement.buffer] = buffers.get(placement.buffer, 0) + size
        self._buffers.placed(buffers)
        self._ledger.complete(sum(groups.values()), groups)
        if self._ledger.over.is_set():
            self._share.stop()
            self._reading.wake()
            self._leave_when_done()

    # Life and end.

    def _leave_when_done(self) -> None:
        with self._ledger.lock:
            if not self._ledger.over.is_set() or not self._has_read or self._told:
                return
            self._told = True
        for place in self._machine.links:
            self._links.send(place, Leaving())
        self._links.stop()

    def _fail(self, error: BaseException) -> None:
        """Let `error` end the load here and on the others."""
        with self._ledger.lock:
            if self._told:
                return
            self._told = True
            self._ledger.fail(error)
        own = self._machine.ranks[self._place]
        match error:
            case PeerLost():
                message = Ended(error.rank, "lost", error.cause)
            case PeerFailed():
                message = Ended(error.rank, "failed", error.cause)
            case Cancelled():
                message = Ended(own, "failed", "its load was cancelled.")
            case _:
                message = Ended(own, "failed", told(error))
        if self._ledger.failure is None:
            _logger.warning(
                "Rank %d has all that it wants, but cannot read on for others: %s", own, told(error)
            )
        self._share.stop()
        self._links.tell_all(message)
        self._links.stop()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # handed to whoever waits
            self._fail(error)

    def _keep(self) -> None:
        """Listen to the others until the end, then let go of everything. Done once, whoever comes first."""
        if not self._kept.acquire(blocking=False):
            return
        self._guarded(self._links.run)
        self._reading.cancel()
        self._guarded(self._reading.wait)
        for _ in range(_DELIVERERS):
            self._jobs.put(None)
        for thread in self._workers:
            if thread.is_alive():  # not one that was never started
                thread.join()
        self._let_go()

    def _let_go(self) -> None:
        """Give everything back, and forget every view of what lay in slots: as long as one lives, so does its ring."""
        with self._ledger.lock:
            self._final = self._reading.progress()
            del self._reading
        self._jobs = SimpleQueue()
        self._admission = Admission((), (), None)
        failure = self._ledger.failure
        forget_locals(failure)
        if failure is not None or self._final.retries:
            gc.collect()  # errors and the frames that they passed through, which had views, refer to each other
        self._links.close()
        self._machine.close()
