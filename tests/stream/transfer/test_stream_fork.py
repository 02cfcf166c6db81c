"""What a process that is forked in the middle of loads inherits: memory, but none of the threads that read."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace import SafetensorsStreamer, load_file, open_checkpoint
from headrace.stream.library.streamer import StreamerMisused
from headrace.stream.transfer.budget import PROCESS_BUDGET
from tests.faults import server as faults
from tests.faults.server import FaultServer, fault_server
from tests.stream.safetensors_files import content, file_of
from tests.stream.streaming import credentials_of, put

pytestmark = pytest.mark.timeout(60)
TENSORS = {f"t{at}": content("U8", (64, 100), at) for at in range(8)}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server({}) as running:
        yield running


def in_child(work: Callable[[], bool]) -> bool:
    """What `work` says in a forked process; one that hangs is ended and says no."""
    child = os.fork()
    if child == 0:
        said = False
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            said = work()
        finally:
            os._exit(0 if said else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def held_elsewhere(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Another thread, which a forked process has not, holds the lock."""
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            enough.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        yield
    finally:
        enough.set()
        holder.join()


def test_a_load_begins_though_the_parent_held_every_connection(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(TENSORS))
    member = PROCESS_BUDGET.join()
    taken = 0
    while member.take():
        taken += 1
    try:
        assert in_child(lambda: load_file(path, framework="numpy").keys() == TENSORS.keys())
    finally:
        for _ in range(taken):
            member.give_back()
        member.leave()


def test_a_streamer_of_the_parent_is_refused_in_the_child_and_goes_on_in_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(TENSORS))

    def refused() -> bool:
        with pytest.raises(StreamerMisused, match="belongs to the process that this one was forked from"):
            next(streamer.get_tensors())
        streamer.close()
        return True

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, framework="numpy", memory_limit=6400)
        next(streamer.get_tensors())
        assert in_child(refused)
        assert len(list(streamer.get_tensors())) == len(TENSORS) - 1


def test_an_iterator_that_had_begun_is_refused_in_the_child_whose_end_disturbs_no_read_of_the_parent(
    server: FaultServer,
) -> None:
    path = put(server, "model.safetensors", TENSORS)
    forked = threading.Event()

    def refused() -> bool:
        for ask in (streamer.progress, lambda: next(tensors)):
            with pytest.raises(StreamerMisused, match="belongs to the process that this one was forked from"):
                ask()
        streamer.close()  # which would end a connection for the parent too, or wait for a lock that nobody gives back
        return True

    with SafetensorsStreamer() as streamer:
        # The header's read is honest, the tensors' stops within its second chunk.
        server.script.extend([faults.honest, faults.honest, faults.held(100, forked)])
        streamer.stream_file(path, credentials_of(server), framework="numpy", chunk_bytes=6400, concurrency=1)
        tensors = streamer.get_tensors()
        first = next(tensors)
        server.stalled.get(timeout=30)
        try:
            # A worker holds it for moments.
            with held_elsewhere(streamer._stream._transfer._ledger.lock):  # type: ignore[union-attr]
                assert in_child(refused)
        finally:
            forked.set()
        assert dict([first, *tensors]).keys() == TENSORS.keys()
        progress = streamer.progress()
        assert progress is not None and progress.retries == 0


def test_processes_read_from_one_checkpoint_that_was_opened_before_they_were_forked(
    server: FaultServer,
) -> None:
    path = put(server, "model.safetensors", TENSORS)
    whole = {name: np.frombuffer(c.data, np.uint8).reshape(c.shape) for name, c in TENSORS.items()}

    def reads() -> bool:
        return all(
            np.array_equal(checkpoint[name][row : row + 3], whole[name][row : row + 3])
            for row in range(60)
            for name in TENSORS
        )

    with open_checkpoint(path, s3_credentials=credentials_of(server), framework="numpy") as checkpoint:
        assert np.array_equal(checkpoint["t0"][0], whole["t0"][0])  # its connection is kept
        with held_elsewhere(checkpoint._lock):  # as by a thread that begins to read at that moment
            assert in_child(reads)
        child = os.fork()
        if child == 0:
            said = False
            try:
                said = reads()
            finally:
                os._exit(0 if said else 1)
        assert reads()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
