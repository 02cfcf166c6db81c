"""The threads of a transfer: how many there are, what each does next, and how one is interrupted."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Store, Target
from headrace.store.errors import StoreError
from headrace.stream.retry import RetryPolicy
from headrace.stream.transfer.budget import Member
from headrace.stream.transfer.ledger import Ledger
from headrace.stream.transfer.limited import LimitedTarget, Limiter
from headrace.stream.transfer.memory import Memory
from headrace.stream.transfer.pace import Pace
from headrace.stream.transfer.seams import Verifier
from headrace.stream.transfer.staging import Staging
from headrace.stream.transfer.tasks import Read, Second, Task, TaskQueue

# Workers that stay when the queue is empty, to help with what is slow.
_SPARE = 4
# Chunks whose rates are remembered.
_REMEMBERED = 32


@dataclass(slots=True, eq=False)
class Worker:
    """A thread and its connection.

    Attributes:
        active: it holds one of the process's connections.
        read: what it reads, or waits to read again.
        era: the pace's, when its present request began.
        worn: its connection was aborted and cannot be used again.
        cut: why its read was ended from outside, where that counts as a failure of the read.
        cpu_s: CPU seconds of its thread when its latest chunk was complete.
    """

    number: int
    reader: Reader | None
    thread: threading.Thread | None = None
    active: bool = False
    read: Read | None = None
    era: int = 0
    worn: bool = False
    cut: StoreError | None = None
    cpu_s: float = 0.0


@dataclass(slots=True, eq=False)
class Abandonment:
    """Whether nobody waits for a transfer any more. It knows nothing of the transfer, so that who tells it may be kept
    for ever (a finalizer is) without keeping all that a failed load has passed through.
    """

    told: bool = False

    def tell(self) -> None:
        """Takes no lock, so that whatever thread collects garbage may call it."""
        self.told = True


@dataclass(slots=True, eq=False)
class Crew:
    """What the threads of one transfer share; guarded by `ledger.lock`, but for what never changes.

    Attributes:
        spare_readers: open connections for the next workers.
        work: workers that have nothing to do wait here.
        workers: those whose threads run; `threads`: all that ever ran; `hired`: how many there ever were.
        tasks: by the number of the worker that has it.
        seconds: second connections that nobody has begun yet; `helping`: how many have begun.
        rates: bytes a second of the latest complete chunks, each by one connection.
        cpu_s: CPU seconds of all workers, for chunks that are complete.
    """

    ledger: Ledger
    queue: TaskQueue
    items: Sequence[ObjectInfo]
    store: Store
    memory: Memory
    staging: Staging
    policy: RetryPolicy
    pace: Pace
    budget: Member
    verifier: Verifier | None
    limiter: Limiter | None
    patience_s: float
    spare_readers: deque[Reader]
    work: threading.Condition = field(init=False)
    workers: dict[int, Worker] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    tasks: dict[int, Task] = field(default_factory=dict)
    seconds: deque[Second] = field(default_factory=deque)
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    hired: int = 0
    helping: int = 0
    active: int = 0
    idle: int = 0
    cpu_s: float = 0.0
    abandonment: Abandonment = field(default_factory=Abandonment)

    def __post_init__(self) -> None:
        self.work = threading.Condition(self.ledger.lock)


def allowed(crew: Crew) -> int:
    """Connections that the transfer may keep busy now."""
    wanted = len(crew.queue) + len(crew.tasks) + len(crew.seconds) + crew.helping
    return crew.budget.share(min(crew.pace.workers, wanted))


def activate(crew: Crew, worker: Worker) -> bool:
    """Take a connection for the worker, if pace and budget have one left."""
    if not worker.active:
        if crew.active >= allowed(crew) or not crew.budget.take():
            return False
        worker.active = True
        crew.active += 1
    return True


def deactivate(crew: Crew, worker: Worker) -> None:
    """Give the worker's connection back to the budget."""
    if worker.active:
        worker.active = False
        crew.active -= 1
        crew.budget.give_back()


def next_job(crew: Crew, worker: Worker) -> Task | Second | None:
    """What the worker does next; waits for it. None: nothing any more, its thread ends."""
    with crew.ledger.lock:
        if worker.active and len(crew.queue) and crew.active > allowed(crew):
            return None
        while not crew.ledger.over.is_set():
            if len(crew.queue) or crew.seconds:
                if not activate(crew, worker):
                    return None  # it is started again when there is room
                if crew.seconds:
                    crew.helping += 1
                    return crew.seconds.popleft()
                if (task := crew.queue.take(allowed(crew))) is not None:
                    crew.tasks[worker.number] = task
                    if crew.idle and len(crew.queue):
                        crew.work.notify()
                    return task
                if crew.ledger.over.is_set():  # all that was left is read elsewhere
                    crew.work.notify_all()
                    return None
            deactivate(crew, worker)
            if not len(crew.queue) and crew.idle >= _SPARE:
                return None
            crew.idle += 1
            crew.work.wait()
            crew.idle -= 1
    return None


def missing_workers(crew: Crew) -> list[Worker]:
    """New workers, registered but not started, as many as pace, budget and work allow."""
    ledger = crew.ledger
    if ledger.over.is_set() or crew.idle:
        return []
    wanted = min(allowed(crew) - len(crew.workers), len(crew.queue))
    new: list[Worker] = []
    for _ in range(wanted):
        reader = crew.spare_readers.popleft() if crew.spare_readers else None
        worker = Worker(crew.hired, reader)
        crew.hired += 1
        crew.workers[worker.number] = worker
        new.append(worker)
    return new


def new_target(crew: Crew, views: Sequence[memoryview], interrupted: threading.Event) -> Target:
    """A target that keeps the transfer's cap, if it has one; `interrupted` ends its waits."""
    return Target(views) if crew.limiter is None else LimitedTarget(views, crew.limiter, interrupted)


def interrupt(worker: Worker) -> None:
    """End what the worker reads or waits for, soon. Under the lock."""
    worker.worn = True
    if worker.reader is not None:
        worker.reader.abort()
    if worker.read is not None:
        worker.read.interrupted.set()


def end(crew: Crew, error: BaseException) -> None:
    """Let `error` end the transfer, unless it is over; every read and wait ends soon."""
    with crew.ledger.lock:
        crew.ledger.fail(error)
        for worker in crew.workers.values():
            interrupt(worker)
        crew.work.notify_all()


def under_way(crew: Crew) -> int:
    """Bytes of chunks that are not complete, whether somebody reads them at the moment or not."""
    held = sum(task.read.target.received for task in crew.tasks.values() if task.read is not None)
    return held + crew.queue.received
