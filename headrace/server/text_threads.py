"""The threads that work on texts: rendering, encoding small texts, and encoding large ones, each in a lane of its own.

A lane keeps what is slow from what is quick: neither a template that takes its time nor a prompt of megabytes
holds up a greeting. The threads are daemons that nothing joins: the server's end must not wait for a text.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Lane = Literal["render", "small", "large"]

# One large text at a time: encoding takes some twenty times the text's size in memory.
_THREADS: dict[Lane, int] = {"render": 2, "small": 2, "large": 1}
# Characters from which on a text is large: some tens of milliseconds of encoding.
LARGE_TEXT = 1 << 16


class DaemonExecutor(Executor):
    """Runs calls on daemon threads, which are started when they are first needed and never joined."""

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    @property
    def busy(self) -> bool:
        """Some call has not returned."""
        return self._unfinished > 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have the call run as soon as a thread is free, unless its future is cancelled before."""
        future: Future[T] = Future()
        with self._lock:
            self._unfinished += 1
            start = self._threads < min(self._most, self._unfinished)
            self._threads += start
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        if start:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Run nothing that has not begun, and let the threads end; never waits for a call that runs."""
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job[0].cancel()
                self._finished()
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del job, future, call  # nothing large is kept alive while this waits for the next
            self._finished()

    def _finished(self) -> None:
        with self._lock:
            self._unfinished -= 1


class TextThreads:
    """The lanes. `close` when the server ends."""

    def __init__(self) -> None:
        self._lanes = {lane: DaemonExecutor(count, f"text-{lane}") for lane, count in _THREADS.items()}

    @property
    def busy(self) -> bool:
        """Some text is still being worked on."""
        return any(lane.busy for lane in self._lanes.values())

    async def render(self, call: Callable[[], T]) -> T:
        """The call's result, from the lane of templates."""
        return await self._run("render", call)

    async def encode(self, call: Callable[[], T], *, characters: int) -> T:
        """The call's result, from the lane that fits the length of what it encodes."""
        if characters < LARGE_TEXT:
            return await self._run("small", call)
        return await self._run("large", partial(_then_trim, call))

    def close(self) -> None:
        """Begin nothing more."""
        for lane in self._lanes.values():
            lane.close()

    async def _run(self, lane: Lane, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._lanes[lane], call)


def _then_trim(call: Callable[[], T]) -> T:
    """Give back to the system what a large text took: the allocator would keep hundreds of megabytes."""
    try:
        return call()
    finally:
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
