"""The C++ kernels' thread pool: each piece runs once, whoever calls, from wherever, on however many threads."""

import ctypes
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from headrace.kernels.native.library import library

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


def parallel(pieces: int, body: Callable[[int], None]) -> None:
    """headrace_parallel with a Python function."""
    loaded = library()
    assert loaded is not None
    function = _BODY(lambda _context, piece: body(piece))
    loaded.headrace_parallel(ctypes.c_int64(pieces), function, None)


def set_threads(count: int) -> None:
    """headrace_set_threads."""
    loaded = library()
    assert loaded is not None
    loaded.headrace_set_threads(count)


@pytest.fixture(autouse=True)
def _one_thread_again() -> Iterator[None]:
    yield
    set_threads(1)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7, 500])
def test_each_piece_runs_once(threads: int, pieces: int) -> None:
    set_threads(threads)
    for _ in range(20):
        seen: list[int] = []
        parallel(pieces, seen.append)
        assert sorted(seen) == list(range(pieces))


def test_a_piece_that_takes_long_holds_up_no_other() -> None:
    set_threads(2)
    others = threading.Semaphore(0)

    def body(piece: int) -> None:
        if piece:
            others.release()
            return
        for _ in range(9):  # returns only when all other pieces have run, which this thread cannot do
            assert others.acquire(timeout=60)

    parallel(10, body)


def test_two_callers_at_once_both_get_all_their_pieces() -> None:
    set_threads(3)
    counts: list[Counter[int]] = [Counter(), Counter()]
    start = threading.Barrier(2)

    def call(own: Counter[int]) -> None:
        start.wait()
        for _ in range(200):
            parallel(5, lambda piece: own.update([piece]))

    callers = [threading.Thread(target=call, args=(own,)) for own in counts]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts == [Counter(dict.fromkeys(range(5), 200))] * 2


def test_a_piece_may_call_the_pool_itself() -> None:
    set_threads(3)
    seen: list[tuple[int, int]] = []
    parallel(4, lambda outer: parallel(3, lambda inner: seen.append((outer, inner))))
    assert sorted(seen) == [(outer, inner) for outer in range(4) for inner in range(3)]


def test_the_number_of_threads_may_change_between_jobs() -> None:
    for threads in (4, 1, 3, 2, 4, 0, -1):
        set_threads(threads)
        loaded = library()
        assert loaded is not None
        assert loaded.headrace_get_threads() == max(threads, 1)
        seen: list[int] = []
        parallel(50, seen.append)
        assert sorted(seen) == list(range(50))


_FORKING = """
import ctypes, os
from headrace.kernels.native.library import library

loaded = library()
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)

def run():
    seen = []
    loaded.headrace_parallel(ctypes.c_int64(50), body(lambda _context, piece: seen.append(piece)), None)
    return sorted(seen) == list(range(50))

loaded.headrace_set_threads(3)
assert run()
child = os.fork()
if not child:
    os._exit(0 if loaded.headrace_get_threads() == 3 and run() else 1)
assert os.waitpid(child, 0)[1] == 0
assert run()
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", _FORKING], check=True, timeout=120)
