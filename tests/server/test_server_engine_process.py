"""The engine's process and the signals that end the server, each alone."""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.ipc.options import EngineOptions
from headrace.server.life.engine_link import why_ended
from headrace.server.life.engine_process import EngineNotStarted, EngineProcess
from headrace.server.life.signals import Signals

OPTIONS = EngineOptions(model="s3://bucket/tiny")


class Ended(Exception):
    """What takes the place of the process's end."""


def end_at_once(number: int) -> NoReturn:
    raise Ended(number)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_an_engine_that_cannot_be_started_is_a_sentence_and_leaves_no_folder(temporary: Path) -> None:
    with pytest.raises(EngineNotStarted, match="No such file"):
        EngineProcess(OPTIONS, ["/nowhere/python"])
    assert list(temporary.iterdir()) == []


def test_a_temporary_folder_that_is_not_there_is_a_sentence_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EngineNotStarted, match="TMPDIR"):
        EngineProcess(OPTIONS, [sys.executable, "-c", ""])


def test_killing_ends_the_process_and_removes_its_folder_also_when_done_twice(temporary: Path) -> None:
    process = EngineProcess(OPTIONS, [sys.executable, "-c", "import time; time.sleep(600)"])
    assert len(list(temporary.iterdir())) == 1
    process.kill()
    process.kill()
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_only_a_kill_is_put_down_to_memory() -> None:
    assert "memory" in why_ended(-signal.SIGKILL).remedy
    assert "memory" not in why_ended(-signal.SIGSEGV).remedy + why_ended(1).remedy
    assert "was ended by SIGSEGV" in why_ended(-signal.SIGSEGV).message
    assert "ended with exit code 1" in why_ended(1).message


def test_a_second_signal_ends_at_once() -> None:
    signals = Signals(end_at_once)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Ended, match=str(int(signal.SIGINT))):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signals.restore()


def start_one(signals: Signals, started: list[str]) -> None:
    with signals.held():
        os.kill(os.getpid(), signal.SIGTERM)
        started.append("a process")


def test_a_second_signal_while_a_process_is_being_started_waits_until_it_is_known() -> None:
    signals = Signals(end_at_once)
    started: list[str] = []
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Ended):
            start_one(signals, started)
        assert started == ["a process"]
    finally:
        signals.restore()
