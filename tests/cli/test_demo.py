"""`headrace demo` as a person runs it: the real store, the real model, the real server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.cli.demo import _tell, fill_store
from headrace.cli.main import main
from headrace.demo.serving import Answer, Server, StartUp
from headrace.demo.store import start_store

WEIGHT_BYTES = 269_030_016  # 134,515,008 parameters in bf16


@dataclass(frozen=True, slots=True)
class Place:
    """A cache folder that one demo has filled, and the temporary folder of the demos."""

    cache: Path
    temporary: Path
    first: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.cache, self.temporary)


def environment(cache: Path, temporary: Path) -> dict[str, str]:
    return {**os.environ, "HEADRACE_CACHE": str(cache), "TMPDIR": str(temporary)}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "demo", *args]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Place:
    """The model is fetched by other tests too: here the demo's own code puts their copy into the store."""
    cache, temporary = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch, start_store(cache / "demo") as store:
        patch.setattr("headrace.demo.model.prepare_smollm2", partial(copy_files, smollm2_folder))
        fill_store(store)
    return first_answer(cache, temporary)


def copy_files(source: Path, folder: Path) -> None:
    for path in source.iterdir():
        shutil.copyfile(path, folder / path.name)


def first_answer(cache: Path, temporary: Path) -> Place:
    result = subprocess.run(
        command("--once", "--json", "--prompt", "The capital of France is"),
        env=environment(cache, temporary),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return Place(cache, temporary, json.loads(result.stdout.splitlines()[-1]))


def test_the_answer_names_paris(place: Place) -> None:
    assert "Paris" in place.first["answer"]


def test_json_tells_what_was_measured(place: Place) -> None:
    assert place.first.keys() == {
        "answer",
        "model_uri",
        "bytes_streamed",
        "phases",
        "time_to_first_token_s",
    }
    assert place.first["model_uri"] == "s3://models/smollm2-135m-instruct"
    assert WEIGHT_BYTES <= place.first["bytes_streamed"] <= 1.02 * WEIGHT_BYTES + (1 << 20)
    assert place.first["phases"]
    assert all(seconds >= 0 for seconds in place.first["phases"].values())
    assert place.first["time_to_first_token_s"] > 0


@pytest.mark.soak
def test_a_demo_that_starts_from_nothing_fetches_the_model(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    place = first_answer(tmp_path / "cache", tmp_path / "tmp")
    assert "Paris" in place.first["answer"]
    assert list(place.temporary.iterdir()) == []


def test_weights_are_in_the_stores_data_folder_and_nowhere_else(place: Place) -> None:
    assert list(place.temporary.iterdir()) == []
    large = [path for path in place.cache.rglob("*") if path.is_file() and path.stat().st_size > 8 << 20]
    assert large
    assert all(place.cache / "demo" in path.parents for path in large)


def test_ctrl_c_ends_all_that_was_started(place: Place) -> None:
    demo = subprocess.Popen(
        command(), env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stderr is not None
    said = read_until(demo, "Ctrl-C ends")
    assert any("in the store already" in line for line in said)
    started = psutil.Process(demo.pid).children(recursive=True)
    assert len(started) >= 3  # the store, the server, its engine
    demo.send_signal(signal.SIGINT)
    shown, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0
    assert "Paris" in shown
    assert "curl -s http://127.0.0.1:" in shown
    assert not any(process.is_running() for process in started)
    assert list(place.temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_model_loads_ends_all_that_was_started(
    number: signal.Signals, place: Place
) -> None:
    demo = subprocess.Popen(
        command("--once"), env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    read_until(demo, "headrace serve")
    started = psutil.Process(demo.pid).children(recursive=True)
    assert started
    demo.send_signal(number)
    demo.communicate(timeout=60)
    assert demo.returncode == 143
    assert not any(process.is_running() for process in started)
    assert list(place.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("stays", "shown"), [(True, "curl -s http://127.0.0.1:7/v1"), (False, "`headrace demo`")]
)
def test_only_a_server_that_stays_is_offered_for_a_talk(
    stays: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    _tell(Server(done, "m", 7, 0.0), Answer("Paris", 1.0), StartUp((("list", 0.0, 0.1),), 5), stays=stays)
    text = capsys.readouterr().out
    assert shown in text
    assert ("curl" in text) == stays


def read_until(demo: subprocess.Popen[str], text: str) -> list[str]:
    """The lines of stderr up to the one that holds the text."""
    assert demo.stderr is not None
    lines: list[str] = []
    for line in demo.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"The demo ended without saying {text!r}:\n{''.join(lines)}")


def test_a_port_in_use_is_told_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--once", "--port", str(port)]) == 1
    assert f"Port {port} is in use." in capsys.readouterr().err
