"""The work of a transfer: chunks in order, each as a task that remembers how far it is."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.source.objects import ObjectInfo
from headrace.store.base import Target
from headrace.stream.plan import Chunk, ReadPlan, split
from headrace.stream.transfer.hasten import ByteRange, cut_out, overlap_bytes
from headrace.stream.transfer.landing import Run, runs_of, staged_bytes
from headrace.stream.transfer.seams import Gate, Share
from headrace.stream.transfer.staging import Staging

SHORTEST_CHUNK_BYTES = 1 << 20
_SHORTEST_CHUNK_S = 0.1
# Chunks that are read side by side share the link: on a slow one, eight whole ones would be ten seconds without a tensor.
_LONGEST_CHUNK_S = 1.0


@dataclass(slots=True, eq=False)
class Read:
    """Bytes of an object on their way into a target, by one connection at a time.

    Attributes:
        start: where in the object the target's first byte lies.
        interrupted: ends its waiting; set together with the abort of its connection.
        is_typical: its rate tells what those of others will be.
        dropped: nobody needs it any more.
        busy: a request is under way, since `since_s`, when `at_first` bytes were there.
        seen_s, at_seen: the same, of the last look at its rate.
    """

    item: ObjectInfo
    start: int
    target: Target
    interrupted: threading.Event
    is_typical: bool = True
    dropped: bool = False
    busy: bool = False
    since_s: float = 0.0
    at_first: int = 0
    seen_s: float = 0.0
    at_seen: int = 0


@dataclass(slots=True, eq=False)
class Task:
    """A chunk and how far it is. Belongs to the worker that took it, until that gives it back.

    Attributes:
        runs, views, read: where its bytes land; read is None before its first byte is asked for.
        hastened: it was taken before its turn.
        failures: tries since the last new byte, at `at_failure`.
        second: a second connection is put to its missing bytes.
        rescue: the second connection that has brought them, whole and proved, before the first.
    """

    chunk: Chunk
    runs: Sequence[Run]
    staged: int
    hastened: bool = False
    scratch: bytearray | None = None
    views: Sequence[memoryview] = ()
    read: Read | None = None
    failures: int = 0
    at_failure: int = 0
    second: "Second | None" = None
    rescue: "Second | None" = None


@dataclass(slots=True, eq=False)
class Second:
    """The missing bytes of a task, from `offset` of its chunk on, asked for once more into scratch.

    Attributes:
        owner: the number of the worker that has the task.
    """

    task: Task
    owner: int
    offset: int
    scratch: bytearray
    read: Read


class TaskQueue:
    """Takes chunks in the plan's order: those that were given back first, then what is wanted before its turn.

    Belongs to the ledger's lock.

    Attributes:
        rate: bytes a second of one connection, as far as known.
    """

    def __init__(
        self,
        plan: ReadPlan,
        gate: Gate | None,
        staging: Staging,
        share: Share | None = None,
        leave: Callable[[Chunk], None] = lambda _: None,
    ) -> None:
        """Args: leave: told of each chunk that another transfer reads."""
        self._chunks = deque(plan.chunks)
        self._bytes_left = plan.bytes_total
        self._given_back: deque[Task] = deque()
        self._hastened: deque[Chunk] = deque()
        self._next: Task | None = None  # of the first chunk, once it was asked for
        self._gate, self._staging = gate, staging
        self._share, self._leave = share, leave
        self.rate: float | None = None

    def __len__(self) -> int:
        return len(self._chunks) + len(self._hastened) + len(self._given_back)

    @property
    def received(self) -> int:
        """Bytes that are there already of what was given back."""
        return sum(task.read.target.received for task in self._given_back if task.read is not None)

    def take(self, workers: int) -> Task | None:
        """The next task, or None where there is none or no room for it.

        Args: workers: how many there are, or will be in a moment.
        """
        if self._given_back:
            return self._given_back.popleft()
        if not self._hastened and not self._is_ours():
            return None
        chunks = self._hastened or self._chunks
        if self._next is None:
            self._shorten_first(chunks, workers)
            runs = runs_of(chunks[0])
            self._next = Task(chunks[0], runs, staged_bytes(runs), hastened=chunks is self._hastened)
        task = self._next
        if task.staged and not self._staging.reserve(task.staged):
            return None
        if self._gate is not None and not self._gate.may_start(task.chunk):
            if task.staged:
                self._staging.release(task.staged, None)
            return None
        self._next = None
        chunks.popleft()
        self._bytes_left -= task.chunk.end - task.chunk.start
        return task

    def _is_ours(self) -> bool:
        """Whether the first chunk is to be read here; those that others read are passed over."""
        while self._chunks:
            if self._share is None or self._next is not None:
                return True
            if (reads := self._share.reads(self._chunks[0])) is not False:
                return reads is True
            chunk = self._chunks.popleft()
            self._bytes_left -= chunk.end - chunk.start
            self._leave(chunk)
        return False

    def give_back(self, task: Task) -> None:
        """Somebody else is to go on with it, before anything new is begun."""
        self._given_back.append(task)

    def hasten(self, ranges: Sequence[ByteRange]) -> int:
        """Let what nobody has taken of these ranges be read next; how many bytes of them that is, and was already.

        Chunks are cut for it, so that nothing is read twice. Not where a share or a gate counts on the plan's order.
        """
        assert self._share is None and self._gate is None
        self._next = None  # nothing is reserved for it yet
        first = list(self._hastened)
        chunks: deque[Chunk] = deque()
        for chunk in self._chunks:
            wanted, rest = cut_out(chunk, ranges)
            first += wanted
            chunks += rest
        self._hastened, self._chunks = deque(first), chunks
        return sum(overlap_bytes(chunk, ranges) for chunk in first) + sum(
            overlap_bytes(task.chunk, ranges) for task in self._given_back
        )

    def _shorten_first(self, chunks: deque[Chunk], workers: int) -> None:
        """Cut the first chunk to what a connection is to read at once.

        Little, as long as nothing is known of its rate, then not more than comes within a second; and towards the end
        less and less, so that the last connections end together. One worker alone shares with nobody.
        """
        if workers < 2:
            return
        first = chunks[0]
        size = SHORTEST_CHUNK_BYTES
        if self.rate is not None:
            share = max(self._bytes_left // (2 * workers), int(self.rate * _SHORTEST_CHUNK_S))
            size = max(size, min(share, int(self.rate * _LONGEST_CHUNK_S)))
        if first.end - first.start >= 1.5 * size:
            head, rest = split(first, size)
            chunks[0] = head
            if rest is not None:
                chunks.insert(1, rest)
