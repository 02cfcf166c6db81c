"""What a worker does with a chunk: read it, try again from the missing byte, prove it and put it in its place.

A range has one writer. Where a second connection brings the missing bytes sooner, they come to the one worker
whose chunk it is, after its own read has ended; it alone writes and says that the chunk is complete.
"""

import random
import threading
import time

from headrace.store.base import Target
from headrace.store.errors import StoreError, Throttled, TimedOut, TransientError, Unreachable
from headrace.stream.plan import Chunk
from headrace.stream.retry import RETRIED, retry_after_s
from headrace.stream.transfer.crew import (
    Crew,
    Worker,
    activate,
    allowed,
    deactivate,
    end,
    interrupt,
    new_target,
    next_job,
)
from headrace.stream.transfer.landing import settle, views_of
from headrace.stream.transfer.ledger import Cancelled
from headrace.stream.transfer.limited import Interrupted
from headrace.stream.transfer.rate import median
from headrace.stream.transfer.tasks import SHORTEST_CHUNK_BYTES, Read, Second, Task

# To begin a generator of its own would cost each chunk as much as its head does.
_CHANCE = random.Random()


def work(crew: Crew, worker: Worker) -> None:
    """The life of a worker's thread."""
    try:
        while (job := next_job(crew, worker)) is not None:
            if isinstance(job, Task):
                _fetch(crew, worker, job)
            else:
                _help(crew, worker, job)
            del job
    except BaseException as error:  # handed to whoever waits
        end(crew, error)
    finally:
        with crew.ledger.lock:
            deactivate(crew, worker)
            del crew.workers[worker.number]
            crew.work.notify()  # what it leaves undone is for others
        if worker.reader is not None:
            worker.reader.close()


def _fetch(crew: Crew, worker: Worker, task: Task) -> None:
    """Bring a chunk to its place, or give it back to the queue."""
    if not _receive(crew, worker, task):
        return
    settle(task.runs, task.views, crew.memory)
    _let_go(crew, task)
    groups: dict[int, int] = {}
    buffers: dict[int, int] = {}
    for piece in task.chunk.pieces:
        size = piece.end - piece.start
        groups[piece.group] = groups.get(piece.group, 0) + size
        buffers[piece.buffer] = buffers.get(piece.buffer, 0) + size
    crew.memory.filled(buffers)
    cpu_s = time.thread_time()
    with crew.ledger.lock:
        crew.cpu_s += cpu_s - worker.cpu_s
        worker.cpu_s = cpu_s
        del crew.tasks[worker.number]
        worker.read = None
        crew.ledger.complete(task.chunk.end - task.chunk.start, groups, task.chunk)
        if crew.ledger.over.is_set():
            crew.work.notify_all()


def _receive(crew: Crew, worker: Worker, task: Task) -> bool:
    """Receive and prove all bytes of a chunk; False where it was given back to the queue before."""
    read = _begin(crew, task)
    while True:
        failure: StoreError | Interrupted | None = None
        try:
            _request(crew, worker, read)
        except (StoreError, Interrupted) as error:
            failure = error
        if failure is None or _rescued(crew, task):
            _forget_frames(failure)
            _end_contest(crew, task)
            failure = _disproof(crew, task)
            if failure is None:
                return True
            _begin_anew(crew, task)
            task.at_failure = 0
        if not _try_again(crew, worker, task, failure):
            return False


def _begin(crew: Crew, task: Task) -> Read:
    if task.read is None:
        scratch = memoryview(b"")
        if task.staged:
            task.scratch = crew.staging.take(task.staged)
            scratch = memoryview(task.scratch)[: task.staged]
        task.views = views_of(task.runs, crew.memory, scratch)
        interrupted = threading.Event()
        target = new_target(crew, task.views, interrupted)
        # One that is short for its haste takes as long as a round trip: that says nothing of a connection's rate.
        is_typical = not task.hastened or target.size >= SHORTEST_CHUNK_BYTES
        task.read = Read(crew.items[task.chunk.shard], task.chunk.start, target, interrupted, is_typical)
    return task.read


def _begin_anew(crew: Crew, task: Task) -> None:
    """Let the chunk's first byte be the next that is received."""
    assert task.read is not None
    with crew.ledger.lock:
        task.read.target = new_target(crew, task.views, task.read.interrupted)


def _request(crew: Crew, worker: Worker, read: Read) -> None:
    """Ask for the missing bytes once. Raises StoreError, Interrupted, Cancelled."""
    if worker.worn and worker.reader is not None:
        worker.reader.close()
    reader = crew.store.open_reader() if worker.reader is None or worker.worn else worker.reader
    ledger = crew.ledger
    with ledger.lock:
        worker.reader, worker.worn, worker.cut = reader, False, None
        if ledger.over.is_set():
            raise Cancelled
        if read.dropped:
            raise Interrupted
        read.interrupted.clear()
        read.busy = True
        read.since_s = read.seen_s = ledger.clock()
        read.at_first = read.at_seen = read.target.received
        worker.read, worker.era = read, crew.pace.era
        ledger.requests += 1
    try:
        reader.read_into(read.item, read.start, read.target)
    finally:
        with ledger.lock:
            read.busy = False
    with ledger.lock:
        seconds = ledger.clock() - read.since_s
        if read.is_typical and read.at_first == 0 and seconds > 0:
            crew.rates.append(read.target.size / seconds)
            crew.queue.rate = median(crew.rates)


def _disproof(crew: Crew, task: Task) -> TransientError | None:
    """What is wrong with the bytes of a chunk, where another read may help. Raises StoreError where not."""
    if crew.verifier is not None:
        try:
            crew.verifier.received(task.chunk.shard, task.chunk.start, task.views)
        except TransientError as error:
            return error
    return None


def _try_again(crew: Crew, worker: Worker, task: Task, failure: StoreError | Interrupted) -> bool:
    """Count a failure and wait; False where another worker is to go on. Raises what is final, and Cancelled.

    A new byte starts the count of failures anew.
    """
    read, policy = task.read, crew.policy
    assert read is not None
    with crew.ledger.lock:
        if crew.ledger.over.is_set():
            raise Cancelled from None
        error = worker.cut or failure
        assert isinstance(error, StoreError)
        received = read.target.received
        task.failures = 1 if received > task.at_failure else task.failures + 1
        task.at_failure = received
    if not isinstance(error, RETRIED) or task.failures > policy.attempts:
        raise located(error, crew.store.source.uri_of(read.item.name), task.chunk, task.failures) from error
    delay_s = policy.delay_s(task.failures, retry_after_s(error), _CHANCE)
    with crew.ledger.lock:
        crew.ledger.retries += 1
        if isinstance(error, Throttled):
            crew.pace.throttled(worker.era)
        elif isinstance(error, TimedOut | Unreachable):  # one that trickles says nothing of their number
            crew.pace.timed_out(worker.era)
        too_many = crew.active > allowed(crew)
        deactivate(crew, worker)
    if too_many and worker.reader is not None:
        worker.reader.close()  # the store counts connections, not requests
    _forget_frames(failure)
    read.interrupted.wait(delay_s)
    with crew.ledger.lock:
        if crew.ledger.over.is_set() or read.dropped or activate(crew, worker):
            return True
        _drop_second(crew, task)
        del crew.tasks[worker.number]
        worker.read = None
        crew.queue.give_back(task)
        crew.work.notify()
        return False


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that an error has passed through: their variables hold views of the memory."""
    if error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        _forget_frames(error.__cause__)
        _forget_frames(error.__context__)


def _rescued(crew: Crew, task: Task) -> bool:
    """Whether a second connection has brought the missing bytes, which are then in their views."""
    with crew.ledger.lock:
        second, read = task.rescue, task.read
    if second is None or read is None:
        return False
    brought = memoryview(second.scratch)
    while len(view := Target.next_view(read.target)):  # a limiter has let these bytes pass before
        at = read.target.received - second.offset
        view[:] = brought[at : at + len(view)]
        read.target.received += len(view)
    return True


def _end_contest(crew: Crew, task: Task) -> None:
    """All bytes of a chunk are there: a second connection is not needed any more."""
    with crew.ledger.lock:
        _drop_second(crew, task)
        rescue, task.rescue = task.rescue, None
        if task.read is not None:
            task.read.dropped = False
    if rescue is not None:
        crew.staging.release(rescue.read.target.size, rescue.scratch)


def _drop_second(crew: Crew, task: Task) -> None:
    second, task.second = task.second, None
    if second is not None:
        second.read.dropped = True
        for worker in crew.workers.values():
            if worker.read is second.read:
                interrupt(worker)


def _help(crew: Crew, worker: Worker, second: Second) -> None:
    """Ask for the missing bytes of another worker's chunk, and interrupt it if they are there first.

    What fails here is not tried again: the first connection goes on, and what becomes of the chunk is decided there.
    """
    came = True
    try:
        _request(crew, worker, second.read)
    except (StoreError, Interrupted) as error:
        _forget_frames(error)
        came = False
    task = second.task
    with crew.ledger.lock:
        crew.helping -= 1
        worker.read = None
        crew.ledger.hedged_bytes += second.read.target.received
        won = came and task.second is second
        if won:
            assert task.read is not None
            task.second, task.rescue = None, second
            task.read.dropped = True
            interrupt(crew.workers[second.owner])
    if not won:
        crew.staging.release(second.read.target.size, second.scratch)


def _let_go(crew: Crew, task: Task) -> None:
    """Forget every view of a complete chunk, so that its memory is its owner's alone."""
    task.views, task.read = (), None
    if task.staged:
        crew.staging.release(task.staged, task.scratch)
        task.scratch = None


def located(error: StoreError, uri: str, chunk: Chunk, failures: int) -> StoreError:
    """The same kind of error, told of one range of one object."""
    remedy = error.remedy
    if isinstance(error, RETRIED):
        remedy = f"Given up after {failures} tries without a new byte. {remedy}".rstrip()
    elsewhere = f"{error.uri}: " if error.uri != uri else ""
    return type(error)(
        uri,
        f"Bytes {chunk.start}-{chunk.end - 1} could not be read: {elsewhere}{error.cause}",
        remedy=remedy,
        status=error.status,
        code=error.code,
        request_id=error.request_id,
    )
