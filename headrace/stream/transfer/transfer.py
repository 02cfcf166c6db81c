"""Carrying out a read plan: worker threads take chunks from one queue and receive into the final memory.

Here is what a caller sees. crew.py has the threads, fetch.py what each does with a chunk, overseer.py what looks
after them, ledger.py who is told what.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Thread

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Store
from headrace.store.threads import start
from headrace.stream.plan import ReadPlan
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.budget import PROCESS_BUDGET, ConnectionBudget
from headrace.stream.transfer.crew import Crew, end, under_way
from headrace.stream.transfer.hasten import ByteRange, joined, overlap_bytes
from headrace.stream.transfer.ledger import Cancelled, DeadlineExceeded, Ledger
from headrace.stream.transfer.limited import Limiter
from headrace.stream.transfer.memory import memory_of
from headrace.stream.transfer.overseer import Overseer
from headrace.stream.transfer.pace import PROCESS_CEILING, Pace
from headrace.stream.transfer.progress import Progress
from headrace.stream.transfer.rate import LEAST_RATE_WINDOW_S
from headrace.stream.transfer.seams import Buffers, Gate, Share, Verifier
from headrace.stream.transfer.staging import DEFAULT_STAGING_BYTES, Staging
from headrace.stream.transfer.tasks import TaskQueue

__all__ = ["Cancelled", "DeadlineExceeded", "Progress", "Transfer"]


class Transfer:
    """A running transfer. `wait`, `wait_group` and `finished_groups` raise what ended it; `cancel` ends it.

    Attributes:
        abandon: cancels it soon. Takes no lock and holds on to nothing: for finalizers.
    """

    def __init__(
        self,
        plan: ReadPlan,
        items: Sequence[ObjectInfo],
        store: Store,
        memory: memoryview | Buffers,
        *,
        concurrency: int | None = None,
        readers: Sequence[Reader] = (),
        policy: RetryPolicy | None = None,
        gate: Gate | None = None,
        share: Share | None = None,
        verifier: Verifier | None = None,
        rate_limit_mb_s: float | None = None,
        deadline_s: float | None = None,
        hedge: bool = True,
        staging_bytes: int | None = DEFAULT_STAGING_BYTES,
        patience_s: float = LEAST_RATE_WINDOW_S,
        budget: ConnectionBudget = PROCESS_BUDGET,
    ) -> None:
        """Start reading at once.

        Args:
            items: the objects that the plan's chunks count.
            memory: where the plan's destinations lie: the writable bytes of buffer 0, or what makes a buffer.
            concurrency: the most connections at once; how many there are adapts to what they bring.
            readers: open connections that the first workers take over.
            gate: asked before each chunk whether there is room for it.
            share: says which of the plan's chunks are read here, where several transfers divide it.
            verifier: proves each chunk.
            rate_limit_mb_s: 10⁶ bytes a second that all workers together do not exceed.
            deadline_s: seconds after which an incomplete load ends with DeadlineExceeded.
            hedge: whether the last slow chunks are asked for once more on another connection.
            staging_bytes: scratch for what is converted, cut or copied at the most (a chunk at a time is always
                read); None for no limit.
            patience_s: how long a connection may trickle.
            budget: the connections that all transfers of the process share.
        """
        assert concurrency is None or concurrency >= 1
        ceiling = min(concurrency or PROCESS_CEILING, budget.limit)
        self._ledger = Ledger(plan)
        staging = Staging(staging_bytes)
        self._crew = Crew(
            ledger=self._ledger,
            queue=TaskQueue(plan, gate, staging, share, self._ledger.leave),
            items=items,
            store=store,
            memory=memory_of(memory, plan.chunks),
            staging=staging,
            policy=policy or RetryPolicy(),
            pace=Pace(ceiling),
            budget=budget.join(),
            verifier=verifier,
            limiter=Limiter(rate_limit_mb_s * 1e6) if rate_limit_mb_s is not None else None,
            patience_s=patience_s,
            spare_readers=deque(readers),
        )
        self.abandon = self._crew.abandonment.tell
        overseer = Overseer(self._crew, deadline_s=deadline_s, hedge=hedge)
        self._overseer = Thread(target=self._oversee, args=(overseer,), name="fetch-overseer", daemon=True)
        try:
            # It starts the workers too: a thread's stack is mapped while others touch fresh memory, and the
            # kernel makes the one wait for the other, which the caller has better things to do than to watch.
            start(self._overseer)
        except BaseException:  # an interrupt, too: the caller never gets this transfer, to cancel it
            self.cancel()
            if self._overseer.ident is None:  # it never ran, who else would do this
                self._crew.budget.leave()
            raise

    def _oversee(self, overseer: Overseer) -> None:
        overseer.run()
        self._crew.budget.leave()
        for reader in self._crew.spare_readers:
            reader.close()

    def progress(self) -> Progress:
        """How far it is; bytes of reads under way count."""
        with self._ledger.lock:
            return self._ledger.progress(under_way(self._crew), self._crew.active)

    def finished_groups(self) -> Iterator[int]:
        """Each group's number once, as it completes; those without bytes first. Raises what ended the transfer."""
        return self._ledger.finished_groups()

    def hasten(self, ranges: Iterable[ByteRange]) -> int:
        """Read these bytes before all that nobody has begun to read; the number by which `wait_group` waits for them.

        Each byte is still read once and goes where the plan says, and its group is complete when the plan's group is.
        Not for a transfer with a gate or a share.
        """
        wanted = joined(ranges)
        with self._ledger.lock:
            missing = self._crew.queue.hasten(wanted)
            missing += sum(overlap_bytes(task.chunk, wanted) for task in self._crew.tasks.values())
            self._crew.work.notify()
            return self._ledger.watch(wanted, missing)

    def wait_group(self, group: int, timeout_s: float | None = None) -> bool:
        """Whether every byte of the group is in place, now or within `timeout_s` (None: as long as it takes).

        A group that is there is not waited for. Raises what ended the transfer before.
        """
        return self._ledger.wait_group(group, timeout_s)

    def wait_end(self, timeout_s: float | None = None) -> bool:
        """Whether nothing is read any more, since all is there or something ended it, now or within `timeout_s`."""
        return self._ledger.over.wait(timeout_s)

    def wait(self) -> None:
        """Return when every byte is in place and no thread can still write. Raises what ended it."""
        self._overseer.join()
        for thread in self._crew.threads:
            thread.join()
        self._ledger.raise_failure()

    def wake(self) -> None:
        """Ask the gate, or the share, again."""
        with self._ledger.lock:
            self._crew.work.notify()

    def cancel(self) -> None:
        """End all reads and connections; who waits gets Cancelled."""
        end(self._crew, Cancelled())
