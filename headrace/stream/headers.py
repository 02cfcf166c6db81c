"""Fetching the headers of all shards, and small files, side by side: one speculative read each."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeVar

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Store, read_range, read_whole
from headrace.store.errors import TransientError
from headrace.stream.header import Shard, header_length, parse_header
from headrace.stream.retry import RetryPolicy

SPECULATIVE_BYTES = 256 << 10

Result = TypeVar("Result")


class ReaderPool:
    """Threads with kept connections for the small reads of start-up; the connections are handed on."""

    def __init__(self, store: Store, size: int) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="small-reads")
        self._idle: SimpleQueue[Reader] = SimpleQueue()

    def map(
        self, work: Callable[[Reader, ObjectInfo], Result], items: Sequence[ObjectInfo]
    ) -> "list[Callable[[], Result]]":
        """Start `work` for each item; each returned function waits for its result, or raises its error."""
        return [self._threads.submit(self._run, work, item).result for item in items]

    def _run(self, work: Callable[[Reader, ObjectInfo], Result], item: ObjectInfo) -> Result:
        try:
            reader = self._idle.get_nowait()
        except Empty:
            reader = self.store.open_reader()
        try:
            return _persistently(lambda: work(reader, item))
        finally:
            self._idle.put(reader)

    def take_readers(self) -> list[Reader]:
        """End the threads and give the open connections away."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        readers: list[Reader] = []
        while not self._idle.empty():
            readers.append(self._idle.get_nowait())
        return readers


def _persistently(work: Callable[[], Result]) -> Result:
    policy, chance = RetryPolicy(attempts=3), random.Random()
    for failures in range(1, policy.attempts + 1):
        try:
            return work()
        except TransientError as error:
            time.sleep(policy.delay_s(failures, error.retry_after_s, chance))
    return work()


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
