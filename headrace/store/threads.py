"""Starting threads where the system may refuse more of them: a limit of processes, a container's, memory for stacks."""

from collections.abc import Iterable
from threading import Thread

from headrace.errors import HeadraceError

THREADS_REMEDY = (
    "Raise the limit of processes and threads (`ulimit -u`, a container's pids limit) or of memory (`ulimit -v`), or "
    "load less at once."
)


class TooManyThreads(HeadraceError):
    """The system lets this process start no more threads."""


def start(thread: Thread) -> None:
    """Start a thread. Raises TooManyThreads."""
    try:
        thread.start()
    except RuntimeError as error:  # the same class tells of mistakes in the program
        if "can't start new thread" not in str(error):
            raise
        raise TooManyThreads("No more threads can be started.", remedy=THREADS_REMEDY) from None


def start_some(threads: Iterable[Thread]) -> list[Thread]:
    """Start as many as can be, for work that fewer do too; those that run. Raises TooManyThreads where none does."""
    running: list[Thread] = []
    for thread in threads:
        try:
            start(thread)
        except TooManyThreads:
            if not running:
                raise
            break
        running.append(thread)
    return running
