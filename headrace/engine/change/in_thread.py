"""Waiting without holding up the step loop: a script goes on when a thread of its own has a result."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> Generator[None, None, T]:
    """The result of something that waits, computed in a thread; raises what it raises.

    A daemon: an engine that ends does not wait for a store.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to the script
            future.set_exception(error)

    threading.Thread(target=run, name="weight-change", daemon=True).start()
    while not future.done():
        yield
    return future.result()
