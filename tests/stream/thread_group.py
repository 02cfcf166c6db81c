"""Ranks as threads of one process: what they say to each other goes through real sockets and shared memory."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")
MEETING_S = 60.0


class Gathering:
    """Where the threads of one group exchange data."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=MEETING_S)
        self.given: dict[int, bytes] = {}


class ThreadGroup:
    """See headrace.stream.ranks.group.Group."""

    def __init__(self, gathering: Gathering, rank: int) -> None:
        self._gathering = gathering
        self.rank = rank
        self.size = gathering.size

    def gather(self, data: bytes) -> list[bytes]:
        self._gathering.given[self.rank] = data
        self._gathering.barrier.wait()
        result = [self._gathering.given[rank] for rank in range(self.size)]
        self._gathering.barrier.wait()
        return result


def run_ranks(size: int, work: Callable[[ThreadGroup], Result]) -> list["Future[Result]"]:
    """`work` in a thread for each rank; returns when all have ended, in whatever way."""
    gathering = Gathering(size)
    futures: list[Future[Result]] = [Future() for _ in range(size)]

    def run(rank: int) -> None:
        try:
            futures[rank].set_result(work(ThreadGroup(gathering, rank)))
        except BaseException as error:  # for whoever asks for the result
            futures[rank].set_exception(error)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return futures
