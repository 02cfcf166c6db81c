"""Rounds of processes: who runs when, what is compared, and what is said of a loader that fails."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.bench.meter import Loaded, measure
from headrace.bench.process import Contestant, LoaderFailed
from headrace.bench.runs import Absent, probe, run_once, run_rounds
from headrace.bench.scene import Measurement, Object, Scene
from headrace.bench.warm import WarmMemory

TIMEOUT_S = 60.0
COLD = WarmMemory(0)


class Told:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []

    def begin(self, name: str, number: int) -> None:
        self.order.append((name, number))

    def end(self, name: str, gb_per_s: float) -> None:
        assert gb_per_s > 0


@pytest.fixture
def file(tmp_path: Path) -> Object:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.arange(5000, dtype=np.float32), "b": np.ones((3, 4), np.float16)}, path)
    return Object(str(path), path.stat().st_size, path=str(path))


def contestant(name: str, loader: str, *files: Object, python: str | None = None) -> Contestant:
    return Contestant(name, Scene(loader, files, connections=2), python, os.environ)


def test_a_scene_and_a_measurement_travel_as_json() -> None:
    scene = Scene("bare", (Object("s3://b/k", 5, url="http://h/b/k", s3_uri="s3://b/k"),), signed=True)
    assert Scene.from_json(scene.to_json()) == scene
    measured = measure(lambda _start: Loaded({"t": b"abc"}, memoryview, 0.5, 3, facts={"retries": 1}))
    assert Measurement.from_dict(measured.to_dict()) == measured
    assert (measured.tensors, measured.tensor_bytes, measured.requests) == (1, 3, 3)


def test_the_same_tensors_have_the_same_digest_in_any_order_and_others_have_another() -> None:
    def digest(**tensors: bytes) -> str:
        return measure(lambda _start: Loaded(tensors)).digest

    one = digest(a=b"1234", b=b"56")
    assert one == digest(b=b"56", a=b"1234")
    assert len({one, digest(a=b"123", b=b"456"), digest(a=b"1235", b=b"56"), digest(a=b"1234", c=b"56")}) == 4


def test_memory_that_a_load_touches_is_its_peak_though_it_is_given_back() -> None:
    # In a process of its own, as every measured load is: what other tests started counts there as well.
    script = """
from headrace.bench.meter import Loaded, measure

def load(_start):
    memory = bytearray(64 << 20)
    memory[::4096] = b"\\x01" * len(memory[::4096])
    return Loaded(size_bytes=len(memory))

print(measure(load).peak_bytes)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert 60 << 20 <= int(shown) <= 90 << 20


def test_every_round_has_each_loader_once_in_an_order_that_moves_on(file: Object) -> None:
    told = Told()
    pair = [
        contestant("wire", "bare", file),
        contestant("mapped", "safetensors", file, python=sys.executable),
    ]
    results = run_rounds(pair, 2, TIMEOUT_S, told, COLD)
    assert told.order == [
        ("wire", 0),
        ("mapped", 0),
        ("mapped", 1),
        ("wire", 1),
        ("wire", 2),
        ("mapped", 2),
    ]
    assert {name: len(measured) for name, measured in results.items()} == {"wire": 2, "mapped": 2}
    assert results["wire"][0].tensor_bytes == file.size_bytes
    assert (results["mapped"][0].tensors, results["mapped"][0].tensor_bytes) == (2, 20_024)


def test_loaders_that_give_different_tensors_are_an_error(file: Object, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"a": np.zeros(5000, np.float32), "b": np.ones((3, 4), np.float16)}, other)
    changed = dataclasses.replace(file, path=str(other))
    pair = [
        contestant("one", "safetensors", file, python=sys.executable),
        contestant("two", "safetensors", changed, python=sys.executable),
    ]
    with pytest.raises(LoaderFailed, match=r"different tensors: one .*, two"):
        run_rounds(pair, 1, TIMEOUT_S, Told(), COLD)


def test_a_loader_that_fails_is_named_with_what_it_said(file: Object) -> None:
    gone = dataclasses.replace(file, path=file.path + ".gone")
    with pytest.raises(LoaderFailed, match=r"wire ended with status 1: FileNotFoundError: .*\.gone"):
        run_once(contestant("wire", "bare", gone), TIMEOUT_S, COLD)


def test_a_loader_that_is_not_installed_is_absent_and_says_what_is_missing(bare_python: str) -> None:
    answer = probe(contestant("runai", "runai", python=bare_python))
    assert answer == Absent("runai", f"{bare_python} has no runai_model_streamer")


def test_a_python_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoaderFailed, match="cannot be run"):
        probe(contestant("runai", "runai", python=str(tmp_path / "python")))


def test_a_load_that_takes_too_long_is_ended(file: Object) -> None:
    with pytest.raises(LoaderFailed, match="did not end within 0 s"):
        run_once(contestant("wire", "bare", file), 0.01, COLD)


class Meanwhile(WarmMemory):
    """Has something happen at the moment at which a load is about to begin."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__(0)
        self._happen = happen

    def release(self) -> None:
        self._happen()


def test_the_servers_log_counts_the_requests(file: Object, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("before\n")

    def serve() -> None:
        with open(log, "a") as lines:
            lines.write("one\ntwo\n")

    assert run_once(contestant("wire", "bare", file), TIMEOUT_S, Meanwhile(serve), log).requests == 2


def test_warm_memory_is_free_before_a_load_begins(tmp_path: Path) -> None:
    late = tmp_path / "late"
    waits_for_it = Object(str(late), 4, path=str(late))
    meanwhile = Meanwhile(lambda: late.write_bytes(b"1234"))
    assert run_once(contestant("wire", "bare", waits_for_it), TIMEOUT_S, meanwhile).tensor_bytes == 4


def test_a_process_that_ends_without_a_word_is_a_failure(file: Object, tmp_path: Path) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    with pytest.raises(LoaderFailed, match="wire ended with status -9: no message"):
        run_once(contestant("wire", "bare", file, python=str(killed)), TIMEOUT_S, COLD)


def test_warm_memory_is_touched_while_it_is_held_and_free_otherwise() -> None:
    before = resident_bytes()
    with WarmMemory(40 << 20) as warm:
        warm.hold()
        assert resident_bytes() - before >= 39 << 20
        warm.release()
        warm.release()
        assert resident_bytes() - before < 20 << 20
        warm.hold()
        assert resident_bytes() - before >= 39 << 20
    assert resident_bytes() - before < 20 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
