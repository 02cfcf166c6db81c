"""What of a transfer is done, what ended it, and who waits to be told."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.errors import HeadraceError
from headrace.stream.plan import Chunk, ReadPlan
from headrace.stream.transfer.hasten import ByteRange, overlap_bytes
from headrace.stream.transfer.progress import Progress


class Cancelled(Exception):
    """The transfer was cancelled before it was complete."""


class DeadlineExceeded(HeadraceError):
    """A load was not complete in the time that it was given."""


class Ledger:
    """The books of one transfer. All fields are guarded by `lock`.

    Attributes:
        lock: re-entrant, so that a signal handler may cancel whatever the main thread was about.
        over: set when nothing is to be read any more: all is there, or something ended it.
    """

    def __init__(self, plan: ReadPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.clock = clock
        self.failure: BaseException | None = None
        self.bytes_total = plan.bytes_total
        self.bytes_done = self.retries = self.hedges = self.hedged_bytes = self.requests = 0
        self.started = clock()
        self._news = threading.Condition(self.lock)
        self._left = dict(plan.groups)
        self._watched: dict[int, Sequence[ByteRange]] = {}
        self._next_watch = min([0, *plan.groups]) - 1
        self._groups_total = len(plan.groups)
        self._finished = [group for group, size in plan.groups.items() if size == 0]
        self._ended: float | None = None
        if not plan.bytes_total:
            self._end()

    def watch(self, ranges: Sequence[ByteRange], missing: int) -> int:
        """A number by which `wait_group` waits for these ranges, of which so many bytes are not in place yet.

        It is none of the plan's groups, and `finished_groups` does not tell of it.
        """
        with self.lock:
            number = self._next_watch
            self._next_watch -= 1
            if missing:
                self._left[number] = missing
                self._watched[number] = ranges
            return number

    def complete(self, size: int, groups: Mapping[int, int], chunk: Chunk | None = None) -> None:
        """So many bytes are in place, so many of each of these groups; those of `chunk`, where ranges may be watched."""
        with self.lock:
            self.bytes_done += size
            if chunk is not None:
                for number, ranges in list(self._watched.items()):
                    self._left[number] -= overlap_bytes(chunk, ranges)
                    if self._left[number] == 0:
                        del self._watched[number]
            for group, count in groups.items():
                left = self._left[group] = self._left[group] - count
                if left == 0:
                    self._finished.append(group)
            if self.bytes_done == self.bytes_total:
                self._end()
            self._news.notify_all()

    def leave(self, chunk: Chunk) -> None:
        """Another transfer reads the chunk: neither its bytes nor the groups that it completes count here."""
        with self.lock:
            self.bytes_total -= chunk.end - chunk.start
            for piece in chunk.pieces:
                left = self._left[piece.group] = self._left[piece.group] - (piece.end - piece.start)
                if left == 0:
                    self._groups_total -= 1
            if self.bytes_done == self.bytes_total:
                self._end()
            self._news.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let `error` end it, unless something else has, or all is there."""
        with self.lock:
            if not self.over.is_set():
                self.failure = error
                self._end()
            self._news.notify_all()

    def _end(self) -> None:
        self._ended = self.clock()
        self.over.set()

    def wait_group(self, group: int, timeout_s: float | None = None) -> bool:
        """Whether all bytes of the group are in place, now or within `timeout_s`; None waits for as long as it takes.

        Raises what ended the transfer before.
        """
        with self.lock:
            if not self._left.get(group):
                return True
            self._news.wait_for(lambda: self.failure is not None or not self._left.get(group), timeout_s)
            if not self._left.get(group):
                return True
            if self.failure is not None:
                raise self.failure
            return False

    def finished_groups(self) -> Iterator[int]:
        """Each group once, in the order in which they are complete. Raises what ended the transfer before the last."""
        told = 0
        while told < self._groups_total:
            with self.lock:
                while not (new := self._finished[told:]) and told < self._groups_total:
                    if self.failure is not None:
                        raise self.failure
                    self._news.wait()
            told += len(new)
            yield from new

    def raise_failure(self) -> None:
        """Raise what ended the transfer, if something did."""
        if self.failure is not None:
            raise self.failure

    def progress(self, under_way: int, concurrency: int) -> Progress:
        """As it stands, with `under_way` bytes of chunks that are not complete."""
        with self.lock:
            end = self._ended if self._ended is not None else self.clock()
            return Progress(
                bytes_done=self.bytes_done + under_way,
                bytes_total=self.bytes_total,
                seconds=end - self.started,
                retries=self.retries,
                hedges=self.hedges,
                hedged_bytes=self.hedged_bytes,
                requests=self.requests,
                concurrency=concurrency,
                groups_done=len(self._finished),
                groups_total=self._groups_total,
            )
