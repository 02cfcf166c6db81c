"""A few blocking steps at once, for what is waited for anyway. The threads are daemons: an error does not wait."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from headrace.store.threads import start_some

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """`work` of each item, in their order. Raises the error of the first item that has one, without the others.

    Fewer threads do where the system has no more; TooManyThreads where it has none.
    """
    if len(items) == 1:
        return [work(items[0])]
    waiting: SimpleQueue[tuple[Item, Future[Result]]] = SimpleQueue()
    futures: list[Future[Result]] = []
    for item in items:
        futures.append(Future())
        waiting.put((item, futures[-1]))

    def run() -> None:
        while True:
            try:
                item, future = waiting.get_nowait()
            except Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work(item))
            except BaseException as error:  # handed to whoever asks for the result
                future.set_exception(error)

    start_some(
        threading.Thread(target=run, name=f"side-by-side-{number}", daemon=True)
        for number in range(min(threads, len(items)))
    )
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
