"""What watches over a transfer a few times a second: its deadline, connections that trickle, its pace, its tail."""

import threading
from collections.abc import Sequence

from headrace.store.errors import TransientError
from headrace.store.threads import TooManyThreads, start
from headrace.stream.transfer.crew import Crew, Worker, end, interrupt, missing_workers, new_target, under_way
from headrace.stream.transfer.fetch import work
from headrace.stream.transfer.ledger import Cancelled, DeadlineExceeded
from headrace.stream.transfer.processors import Processors
from headrace.stream.transfer.rate import far_too_slow
from headrace.stream.transfer.tail import EXTRA_SHARE, Running, worth_a_second
from headrace.stream.transfer.tasks import Read, Second

TICK_S = 0.1
WINDOW_S = 0.15  # of a measurement of goodput; ends with the next tick


class Overseer:
    """One thread beside the workers, which it alone starts."""

    def __init__(self, crew: Crew, *, deadline_s: float | None, hedge: bool) -> None:
        self._crew = crew
        self._deadline_s = deadline_s
        self._hedge = hedge
        self._promised = 0  # extra bytes that second connections may read at most
        self._window: tuple[float, int, float] | None = None
        self._processors = Processors()

    def run(self) -> None:
        """Until the transfer is over."""
        ledger = self._crew.ledger
        try:
            self._start_workers()
            while not ledger.over.wait(self._next_s()):
                with ledger.lock:
                    if ledger.over.is_set():
                        break
                    if self._crew.abandonment.told:
                        end(self._crew, Cancelled())
                        break
                    now = ledger.clock()
                    self._keep_deadline(now)
                    self._cut_trickles(now)
                    self._measure(now)
                    if self._hedge:
                        self._put_seconds(now)
                self._start_workers()
        except BaseException as error:  # handed to whoever waits
            end(self._crew, error)

    def _start_workers(self) -> None:
        """As many as there is work and leave for, or as the system has threads. Raises TooManyThreads where none runs."""
        crew = self._crew
        with crew.ledger.lock:
            new = missing_workers(crew)
        for at, worker in enumerate(new):
            name = f"fetch-{worker.number}"
            worker.thread = threading.Thread(target=work, args=(crew, worker), name=name, daemon=True)
            try:
                start(worker.thread)
            except TooManyThreads:
                if self._dismiss(new[at:]):
                    return  # with those that there are; the next tick tries again
                raise
            with crew.ledger.lock:
                crew.threads.append(worker.thread)

    def _dismiss(self, workers: Sequence[Worker]) -> int:
        """Take back workers that never ran; how many there are without them."""
        crew = self._crew
        with crew.ledger.lock:
            for worker in workers:
                del crew.workers[worker.number]
                if worker.reader is not None:
                    crew.spare_readers.append(worker.reader)
            return len(crew.workers)

    def _next_s(self) -> float:
        if self._deadline_s is None:
            return TICK_S
        left_s = self._crew.ledger.started + self._deadline_s - self._crew.ledger.clock()
        return min(TICK_S, max(left_s, 0.0))

    def _keep_deadline(self, now: float) -> None:
        ledger, limit_s = self._crew.ledger, self._deadline_s
        if limit_s is None or now < ledger.started + limit_s:
            return
        done = ledger.bytes_done + under_way(self._crew)
        end(
            self._crew,
            DeadlineExceeded(
                f"{self._crew.store.source.uri}: {done:,} of {ledger.bytes_total:,} bytes were there "
                f"when the {limit_s:g} s that the load was given had passed.",
                remedy="Give it more time, or look at what slows it: the link, the store, a cap.",
            ),
        )

    def _cut_trickles(self, now: float) -> None:
        """Connections on which bytes keep coming, but far too few of them, are ended like one that stalls."""
        crew = self._crew
        due: list[Worker] = []
        rates: list[float] = []
        for worker in crew.workers.values():
            read = worker.read
            if read is None or not read.busy:
                continue
            seconds = now - read.seen_s
            if seconds >= crew.patience_s:
                due.append(worker)
                rates.append((read.target.received - read.at_seen) / seconds)
                read.seen_s, read.at_seen = now, read.target.received
        cap = crew.limiter.bytes_per_s if crew.limiter is not None else None
        for number in far_too_slow(rates, cap):
            worker = due[number]
            assert worker.read is not None
            worker.cut = TransientError(
                crew.store.source.uri_of(worker.read.item.name),
                f"Only {rates[number]:,.0f} bytes/s came for {crew.patience_s:g} s.",
            )
            interrupt(worker)

    def _measure(self, now: float) -> None:
        """Tell the pace what the last window gave, if all workers were busy in it."""
        crew = self._crew
        pace = crew.pace
        done = crew.ledger.bytes_done + crew.ledger.hedged_bytes + under_way(crew)
        if crew.idle or crew.active != pace.workers or not len(crew.queue):
            self._window = None
        elif self._window is None:
            self._window = (now, done, crew.cpu_s)
        elif now - self._window[0] >= WINDOW_S:
            since, before, cpu_s = self._window
            seconds = now - since
            busy = self._processors.are_busy(crew.cpu_s - cpu_s, seconds)
            pace.measured(max(0, done - before) / seconds, room=not busy)
            self._window = (now, done, crew.cpu_s)

    def _put_seconds(self, now: float) -> None:
        """Let idle workers ask once more for what is slow."""
        crew = self._crew
        if not crew.idle or crew.seconds:
            return
        running = [
            Running(
                number,
                read.target.received - read.at_first,
                read.target.size - read.target.received,
                now - read.since_s,
            )
            for number, task in crew.tasks.items()
            if (read := task.read) is not None and read.busy and not read.dropped
        ]
        free = crew.idle
        for slow in worth_a_second(running, crew.queue.rate):
            task = crew.tasks[slow.number]
            read = task.read
            assert read is not None
            offset = read.target.received
            missing = read.target.size - offset
            if task.second is not None or missing == 0 or free == 0:
                continue
            if self._promised + missing > EXTRA_SHARE * crew.ledger.bytes_total or not crew.staging.reserve(
                missing
            ):
                continue
            free -= 1
            self._promised += missing
            scratch = crew.staging.take(missing)
            interrupted = threading.Event()
            target = new_target(crew, [memoryview(scratch)[:missing]], interrupted)
            copy = Read(read.item, read.start + offset, target, interrupted, read.is_typical)
            task.second = Second(task, slow.number, offset, scratch, copy)
            crew.seconds.append(task.second)
            crew.ledger.hedges += 1
            crew.work.notify()
