"""Carrying out a read plan: worker threads take chunks from one queue and receive into the final memory.

A chunk is written by one worker only. Failed reads are resumed from the missing byte. Who waits for a
group of bytes wakes when the last of them is in place.
"""

import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Store, Target
from headrace.store.errors import StoreError
from headrace.stream.convert import convert
from headrace.stream.plan import Chunk, Placement, ReadPlan, placed_bytes
from headrace.stream.progress import Progress
from headrace.stream.retry import RETRIED, RetryPolicy, retry_after_s
from headrace.stream.seams import Buffers, Gate, Share, Verifier

DEFAULT_CONCURRENCY = 8


class Cancelled(Exception):
    """The transfer was cancelled before it was complete."""


class Transfer:
    """A running transfer. `wait` and `wait_group` raise what ended it; `cancel` ends it."""

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
    ) -> None:
        """Start reading at once.

        Args:
            items: the objects that the plan's chunks count.
            memory: where the plan's destinations lie; writable bytes.
            concurrency: worker threads, each with a connection.
            readers: open connections that the first workers take over.
        """
        self._plan, self._items, self._store, self._memory = plan, items, store, memory
        self._gate, self._share, self._verifier = gate, share, verifier
        self._bytes_total, self._groups_total = plan.bytes_total, len(plan.groups)
        self._requests = 0
        self._buffers: dict[int, memoryview] = {}
        self._finished = [group for group, size in plan.groups.items() if size == 0]
        self._policy = policy or RetryPolicy()
        self._changed = threading.Condition(threading.RLock())
        self._left = dict(plan.groups)
        self._chunks = iter(plan.chunks)
        self._next: Chunk | None = None
        self._running: dict[int, Target] = {}
        self._readers: set[Reader] = set()
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._bytes_done = 0
        self._retries = 0
        self._started = time.monotonic()
        self._ended: float | None = None if plan.chunks else self._started
        assert concurrency is None or concurrency >= 1
        assert gate is None or share is None  # what is shared waits for room by itself
        count = min(concurrency or DEFAULT_CONCURRENCY, len(plan.chunks))
        spare = list(readers[count:])
        for reader in spare:
            reader.close()
        self._threads = [
            threading.Thread(target=self._work, args=(number, reader), name=f"fetch-{number}", daemon=True)
            for number, reader in itertools.zip_longest(range(count), readers[:count])
        ]
        for thread in self._threads:
            thread.start()

    def progress(self) -> Progress:
        """How far it is; bytes of reads under way count."""
        with self._changed:
            under_way = sum(target.received for target in self._running.values())
            end = self._ended if self._ended is not None else time.monotonic()
            return Progress(
                bytes_done=self._bytes_done + under_way,
                bytes_total=self._bytes_total,
                seconds=end - self._started,
                retries=self._retries,
                hedges=0,
                hedged_bytes=0,
                requests=self._requests,
                concurrency=len(self._running),
                groups_done=len(self._finished),
                groups_total=self._groups_total,
            )

    def finished_groups(self) -> Iterator[int]:
        """Each group's number once, as it completes; those without bytes first. Raises what ended the transfer."""
        at = 0
        while at < self._groups_total:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._failure is not None or len(self._finished) > at or at >= self._groups_total  # noqa: B023
                )
                new = self._finished[at:]
                if not new and self._failure is not None:
                    raise self._failure
            yield from new
            at += len(new)

    def wake(self) -> None:
        """Ask the gate again."""
        with self._changed:
            self._changed.notify_all()

    def wait_group(self, group: int) -> None:
        """Return when every byte of the group is in place. Raises what ended the transfer."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not self._left.get(group))
            if self._left.get(group) and self._failure is not None:
                raise self._failure

    def wait(self) -> None:
        """Return when every byte is in place and no thread can still write. Raises what ended it."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._bytes_done == self._bytes_total

    def cancel(self) -> None:
        """End all reads and connections; who waits gets Cancelled."""
        self._fail(Cancelled())

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None and self._ended is None:
                self._failure = error
            self._stop.set()
            for reader in self._readers:
                reader.abort()
            self._changed.notify_all()

    def _work(self, number: int, reader: Reader | None) -> None:
        try:
            reader = reader or self._store.open_reader()
            with self._changed:
                self._readers.add(reader)
            while not self._stop.is_set() and (chunk := self._next_chunk()) is not None:
                self._fetch(number, reader, chunk)
        except BaseException as error:  # handed to whoever waits
            self._fail(error)
        finally:
            with self._changed:
                self._running.pop(number, None)
                if reader is not None:
                    self._readers.discard(reader)
            if reader is not None:
                reader.close()

    def _next_chunk(self) -> Chunk | None:
        with self._changed:
            while not self._stop.is_set():
                if self._next is None:
                    self._next = next(self._chunks, None)
                chunk = self._next
                if chunk is None:
                    return None
                reads = True if self._share is None else self._share.reads(chunk)
                if reads is False:
                    self._next = None
                    self._leave(chunk)
                elif reads and (self._gate is None or self._gate.may_start(chunk)):
                    self._next = None
                    return chunk
                else:
                    self._changed.wait()
            return None

    def _leave(self, chunk: Chunk) -> None:
        """Another transfer reads the chunk: it counts for nothing here."""
        self._bytes_total -= chunk.end - chunk.start
        for piece in chunk.pieces:
            self._left[piece.group] -= piece.end - piece.start
            if self._left[piece.group] == 0:
                self._groups_total -= 1
        if self._bytes_done == self._bytes_total:
            self._ended = time.monotonic()
        self._changed.notify_all()

    def _fetch(self, number: int, reader: Reader, chunk: Chunk) -> None:
        views, converted = self._views(chunk)
        target = Target(views)
        with self._changed:
            self._running[number] = target
        self._read(reader, chunk, target)
        if self._verifier is not None:
            self._verifier.received(chunk.shard, chunk.start, views)
        for piece, scratch in converted:
            kept = _cut(piece, scratch)
            if piece.source_dtype == piece.dtype:
                self._place(piece)[:] = kept
            else:
                convert(kept, piece.source_dtype, self._place(piece), piece.dtype)
        with self._changed:
            del self._running[number]
            self._bytes_done += chunk.end - chunk.start
            for piece in chunk.pieces:
                self._left[piece.group] -= piece.end - piece.start
                if self._left[piece.group] == 0:
                    self._finished.append(piece.group)
            if self._bytes_done == self._bytes_total:
                self._ended = time.monotonic()
            self._changed.notify_all()

    def _views(self, chunk: Chunk) -> tuple[list[memoryview], list[tuple[Placement, memoryview]]]:
        """Where the chunk's bytes are received: in place, or in scratch where they are to be converted."""
        views: list[memoryview] = []
        converted: list[tuple[Placement, memoryview]] = []
        for piece in chunk.pieces:
            if piece.source_dtype == piece.dtype and piece.columns is None:
                views.append(self._place(piece))
            else:
                views.append(memoryview(bytearray(piece.end - piece.start)))
                converted.append((piece, views[-1]))
        return views, converted

    def _place(self, piece: Placement) -> memoryview:
        if isinstance(self._memory, memoryview):
            memory = self._memory
        else:
            with self._changed:
                if piece.buffer not in self._buffers:
                    self._buffers[piece.buffer] = self._memory(piece.buffer)
                memory = self._buffers[piece.buffer]
        return memory[piece.destination : piece.destination + placed_bytes(piece)]

    def _read(self, reader: Reader, chunk: Chunk, target: Target) -> None:
        """Read a chunk, trying again from the missing byte; a new byte starts the count of failures anew."""
        item = self._items[chunk.shard]
        chance = random.Random()
        failures, before = 0, 0
        while True:
            with self._changed:
                self._requests += 1
            try:
                reader.read_into(item, chunk.start, target)
                return
            except StoreError as error:
                if self._stop.is_set():
                    raise Cancelled from None
                failures = 1 if target.received > before else failures + 1
                before = target.received
                if not isinstance(error, RETRIED) or failures > self._policy.attempts:
                    raise located(error, self._store.source.uri_of(item.name), chunk, failures) from error
                with self._changed:
                    self._retries += 1
                if self._stop.wait(self._policy.delay_s(failures, retry_after_s(error), chance)):
                    raise Cancelled from None


def _cut(piece: Placement, scratch: memoryview) -> memoryview:
    if piece.columns is None:
        return scratch
    import numpy as np

    rows: Any = np.frombuffer(scratch, np.uint8).reshape(-1, piece.columns.row_bytes)
    kept: Any = np.ascontiguousarray(rows[:, piece.columns.first : piece.columns.last]).reshape(-1)
    return memoryview(kept)


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
