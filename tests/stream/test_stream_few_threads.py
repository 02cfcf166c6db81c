"""A system that lets a process start few threads, or none: fewer do the work, or an error says so and nothing stays."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace import load_file, open_checkpoint
from headrace.store.http.connect import endpoint_of, open_socket
from headrace.store.threads import TooManyThreads, start
from headrace.stream.side_by_side import side_by_side
from headrace.stream.transfer.budget import PROCESS_BUDGET
from tests.stream.safetensors_files import content, file_of

pytestmark = pytest.mark.timeout(60)
TENSORS = {f"t{number}": content("U8", (300, 100), number) for number in range(8)}
_NO_STACK = 1 << 47  # bytes: more than a process has addresses for, so that the system refuses the thread


@contextmanager
def threads_left(count: int) -> Iterator[None]:
    """The system refuses all threads but the next `count`."""
    left = count
    honest = threading.Thread.start
    usual = threading.stack_size()

    def counted(thread: threading.Thread) -> None:
        nonlocal left
        if left == 0:
            threading.stack_size(_NO_STACK)
        left -= 1 if left else 0
        honest(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", counted)
        try:
            yield
        finally:
            threading.stack_size(usual)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, tensor) in enumerate(TENSORS.items(), 1):
        file = tmp_path / f"model-{number:05}-of-{len(TENSORS):05}.safetensors"
        file.write_bytes(file_of({name: tensor}))
    return tmp_path


def is_whole(tensors: dict[str, np.ndarray]) -> bool:
    return {name: array.tobytes() for name, array in tensors.items()} == {
        n: c.data for n, c in TENSORS.items()
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(TENSORS))
    return path


@pytest.mark.parametrize("count", [1, 3])
def test_steps_side_by_side_are_done_by_the_threads_that_there_are(count: int) -> None:
    with threads_left(count):
        assert side_by_side(lambda number: number * 2, range(20), 8) == list(range(0, 40, 2))


def test_a_load_goes_on_with_the_workers_that_could_be_started(file: Path) -> None:
    overseer, worker = 1, 1
    with threads_left(overseer + worker):
        assert is_whole(load_file(file, framework="numpy", chunk_bytes=4096))


@pytest.mark.parametrize("count", [0, 1])
def test_a_load_without_a_thread_to_do_it_says_so_and_leaves_nothing_behind(file: Path, count: int) -> None:
    before, members = threading.active_count(), len(PROCESS_BUDGET._members)
    with (
        threads_left(count),
        pytest.raises(TooManyThreads, match=r"No more threads can be started\. Raise the limit"),
    ):
        load_file(file, framework="numpy")
    assert (threading.active_count(), len(PROCESS_BUDGET._members)) == (before, members)
    assert is_whole(load_file(file, framework="numpy"))


def test_a_checkpoint_is_opened_by_one_thread_where_there_are_no_more(folder: Path) -> None:
    with threads_left(1), open_checkpoint(folder, framework="numpy") as checkpoint:
        assert checkpoint.keys() == TENSORS.keys()


def test_a_name_is_looked_up_without_a_thread_where_there_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, threads_left(0):
        connection = open_socket(endpoint_of(f"http://127.0.0.1:{listener.getsockname()[1]}"), lambda _: None)
        assert connection.getpeername() == listener.getsockname()
        connection.close()


def test_a_thread_that_is_started_twice_stays_a_mistake_of_the_program() -> None:
    thread = threading.Thread(target=lambda: None)
    start(thread)
    with pytest.raises(RuntimeError, match="once"):
        start(thread)
    thread.join()
