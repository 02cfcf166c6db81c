"""The bucket holds the only copy of the weights: no file of the serving machine does."""

import signal
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import headrace
from headrace.demo.store import SeaweedStore
from tests.e2e.serving import Server, serving, surroundings, until

MOST_BYTES = 1 << 20
# Code and its data: what the interpreter, its packages and the system's libraries map or open.
CODE = ("/usr/", "/lib/", "/lib64/", "/opt/", "/etc/")


@pytest.fixture(scope="module")
def server(smollm2_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    with serving("--model-path", smollm2_uri, environ=seaweed.environment()) as running:
        assert "Paris" in running.complete("The capital of France is", max_tokens=8)
        yield running


def code_folders() -> tuple[str, ...]:
    """Where mapped files may lie: the system's code, the interpreter's and the packages'."""
    package = str(Path(headrace.__file__).parent)  # where its kernels lie, in a clone too
    paths = {sys.prefix, sys.base_prefix, package, *sysconfig.get_paths().values()}
    return CODE + tuple(str(Path(path).resolve()) + "/" for path in paths)


def open_regular_files(process: psutil.Process) -> Iterator[tuple[str, int]]:
    """Path (deleted and memory files included) and size of each open regular file."""
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        status = descriptor.stat()
        if stat.S_ISREG(status.st_mode):
            yield str(descriptor.readlink()), status.st_size


def mapped_files(process: psutil.Process) -> set[str]:
    """The names behind all mappings, those without a path (heap, stack, anonymous memory) left out."""
    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    names = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return {name for name in names if not name.startswith("[")}


def test_cache_home_working_and_temporary_folders_hold_a_few_megabytes_of_metadata(server: Server) -> None:
    files = [path for path in server.place.folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"config.json", "tokenizer.json"}  # the metadata cache
    large = {str(path): path.stat().st_size for path in files if path.stat().st_size > MOST_BYTES}
    assert {Path(name).name for name in large} <= {"tokenizer.json"}, large
    assert sum(path.stat().st_size for path in files) < 8 * MOST_BYTES


def test_no_process_holds_a_large_file_open(server: Server) -> None:
    processes = server.place.processes()
    assert len(processes) == 2
    for process in processes:
        large = [(name, size) for name, size in open_regular_files(process) if size > MOST_BYTES]
        assert large == []


def test_what_is_mapped_is_code_or_anonymous_memory(server: Server) -> None:
    for process in server.place.processes():
        foreign = {name for name in mapped_files(process) if not name.startswith(code_folders())}
        assert foreign == set()


def test_a_server_that_is_killed_while_it_loads_leaves_no_weights(
    smollm2_uri: str, seaweed: SeaweedStore
) -> None:
    with surroundings() as place:
        server = Server("--model-path", smollm2_uri, environ=seaweed.environment(), place=place)

        def streaming() -> bool:
            answer = server.get("/ready")
            return answer.status_code == 200 or answer.json()["bytes_done"] > 0

        server.wait_until_listening()
        until(streaming, "weights on their way")
        for process in place.processes():
            process.send_signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        until(lambda: not place.processes(), "the end of all processes")
        left = [path for path in place.folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in left) < 8 * MOST_BYTES
