"""Threads that take their work from one queue. Standard library only."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def share(work: Callable[[Iterator[Item]], None], items: Iterable[Item], threads: int) -> None:
    """Call `work` in so many threads, each with an iterator over what the others have not taken.

    Returns when all have ended; raises the first error of any, after which no thread gets more.
    """
    queue, lock, errors = iter(items), threading.Lock(), list[Exception]()

    def taken() -> Iterator[Item]:
        while not errors:
            with lock:
                try:
                    item = next(queue)
                except StopIteration:
                    return
            yield item

    def run() -> None:
        try:
            work(taken())
        except Exception as error:  # raised below, in the caller's thread
            errors.append(error)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
