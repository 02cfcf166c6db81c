"""Fetching the headers of all shards, and small files, side by side: one speculative read each."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from headrace.source.objects import Listing, ObjectInfo
from headrace.store.base import Reader, Store, read_range, read_whole
from headrace.store.errors import TransientError
from headrace.store.threads import TooManyThreads, start
from headrace.stream.checkpoint.header import Shard, header_length, parse_header
from headrace.stream.retry import RetryPolicy, persistently

SPECULATIVE_BYTES = 256 << 10
SMALL_READ_POLICY = RetryPolicy(attempts=3)

Result = TypeVar("Result")


class _Aborted(Exception):
    """Nobody waits for what is read any more."""


class ReaderPool:
    """Threads with kept connections for the small reads of start-up; the connections are handed on.

    The threads are daemons: a start-up that failed does not wait for a read that stalls. Belongs to one
    thread.
    """

    def __init__(self, store: Store, size: int, *, policy: RetryPolicy = SMALL_READ_POLICY) -> None:
        assert size >= 1
        self.store = store
        self._policy = policy
        self._size = size
        self._tasks: SimpleQueue[Callable[[Reader], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._readers: list[Reader] = []
        self._aborted = threading.Event()

    def map(
        self, work: Callable[[Reader, ObjectInfo], Result], items: Sequence[ObjectInfo]
    ) -> "list[Callable[[], Result]]":
        """Start `work` for each item; each returned function waits for its result, or raises its error.

        Raises TooManyThreads where the system has not one.
        """
        return [self._submit(work, item).result for item in items]

    def _submit(self, work: Callable[[Reader, ObjectInfo], Result], item: ObjectInfo) -> "Future[Result]":
        future: Future[Result] = Future()

        def run(reader: Reader) -> None:
            try:
                result = persistently(lambda: work(reader, item), self._policy, self._pause)
            except BaseException as error:  # handed to whoever asks for the result
                future.set_exception(error)
            else:
                future.set_result(result)

        self._tasks.put(run)
        if len(self._threads) < self._size:
            self._add_thread()
        return future

    def _add_thread(self) -> None:
        reader = self.store.open_reader()
        name = f"small-reads-{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(reader,), name=name, daemon=True)
        # Noted before: an interrupt comes while a start is waited for, and `abort` has to know of this one too.
        self._threads.append(thread)
        self._readers.append(reader)
        try:
            start(thread)
        except TooManyThreads:
            self._threads.pop()
            self._readers.pop().close()
            if not self._threads:
                raise
            self._size = len(self._threads)  # those that run have to do

    def _work(self, reader: Reader) -> None:
        while (task := self._tasks.get()) is not None and not self._aborted.is_set():
            task(reader)
        if self._aborted.is_set():
            reader.close()

    def _pause(self, seconds: float) -> None:
        """Between two tries."""
        if self._aborted.wait(seconds):
            raise _Aborted

    def take_readers(self) -> list[Reader]:
        """Wait for what was started, end the threads and give the open connections away."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        readers, self._readers, self._threads = self._readers, [], []
        return readers

    def abort(self, *, wait_s: float = 0.0) -> None:
        """End threads and connections soon, without their results; waits for them no longer than that."""
        self._aborted.set()
        for reader in self._readers:
            reader.abort()
        for _ in self._threads:
            self._tasks.put(None)
        until = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))


def list_model(
    store: Store, *, policy: RetryPolicy = SMALL_READ_POLICY, wait: Callable[[float], object] = time.sleep
) -> Listing:
    """The store's listing; what the store may get over is tried again, no connection at all is told at once.

    Raises as Store.list.
    """
    return persistently(store.list, policy, wait, retried=(TransientError,))


def fetch_file(reader: Reader, item: ObjectInfo) -> bytes:
    """A small file, whole."""
    return read_whole(reader, item)


def fetch_shard(reader: Reader, item: ObjectInfo, where: str) -> Shard:
    """The proved header of one safetensors object: one read, two where the header is very long.

    Raises:
        BadHeader: the object is no legal safetensors.
        StoreError: it could not be read.
    """
    prefix = read_range(reader, item, 0, min(SPECULATIVE_BYTES, item.size_bytes))
    length = header_length(prefix, item.size_bytes, where)
    if 8 + length > len(prefix):
        prefix += read_range(reader, item, len(prefix), 8 + length - len(prefix))
    return parse_header(prefix[8 : 8 + length], item, where)
