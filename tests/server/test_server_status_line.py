"""The bar of a load on a terminal, and the log's lines above it."""

import io
import logging
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from front_harness import OPTIONS

from headrace.ipc.options import EngineOptions
from headrace.server.seen.status_line import AboveStatusLine, StatusLine

COMMAND = [sys.executable, str(Path(__file__).parent / "serve_scripted.py")]
WAIT_S = 30


class Terminal(io.StringIO):
    """What a terminal with one endless screen would show of what is written to it."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """After carriage returns and erasures."""
        return [shown(line) for line in self.getvalue().split("\n")]


def shown(line: str) -> str:
    """What is left of one line: each erasure takes away what stood there."""
    return line.rpartition("\r\x1b[K")[2]


def status_on(terminal: Terminal, columns: int = 80) -> StatusLine:
    return StatusLine(terminal, columns=lambda: columns)


def test_a_text_takes_the_place_of_the_one_before() -> None:
    terminal = Terminal()
    status = status_on(terminal)
    status.show("10 %, a longer text")
    status.show("20 %")
    assert terminal.lines == ["20 %"]


def test_a_text_never_fills_the_terminals_last_column() -> None:
    terminal = Terminal()
    status_on(terminal, columns=20).show("x" * 50)
    assert terminal.lines == ["x" * 19]


def test_a_log_line_goes_above_the_status_line_which_stays() -> None:
    terminal = Terminal()
    status = status_on(terminal)
    log = logging.Logger("test")
    log.addHandler(AboveStatusLine(terminal, status))
    status.show("10 %")
    log.warning("A disk is slow.")
    log.warning("It still is.")
    status.show("20 %")
    assert terminal.lines == ["A disk is slow.", "It still is.", "20 %"]


def test_nothing_of_the_status_line_is_left_when_it_is_cleared() -> None:
    terminal = Terminal()
    status = status_on(terminal)
    log = logging.Logger("test")
    log.addHandler(AboveStatusLine(terminal, status))
    status.show("10 %")
    status.clear()
    log.info("Ready.")
    assert terminal.lines == ["Ready.", ""]


def test_a_log_without_a_status_line_is_plain_text() -> None:
    stream = io.StringIO()
    status = StatusLine(stream)
    log = logging.Logger("test")
    log.addHandler(AboveStatusLine(stream, status))
    log.info("Ready.")
    status.clear()
    assert not status.works
    assert stream.getvalue() == "Ready.\n"


def test_a_dumb_terminal_has_no_line_that_could_be_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not status_on(Terminal()).works


def test_on_a_terminal_a_load_is_a_bar_and_elsewhere_lines(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, engine=EngineOptions(model="halfway"), port=0)
    command = [*COMMAND, msgspec.json.encode(options).decode()]
    environ = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    server = subprocess.Popen(command, stderr=theirs, env=environ)
    os.close(theirs)
    try:
        text = read_until(ours, "50 %")
    finally:
        server.terminate()
        server.wait(WAIT_S)
        os.close(ours)
    assert "[###############...............] 50 %, 5.00 of 10.00 GB" in text
    # The log's own lines are whole, and none has a bar in it.
    logged = [shown(line.rstrip("\r")) for line in text.split("\n") if "INFO" in line]
    assert logged
    assert all(re.fullmatch(r"\[[-\d :]+\] INFO .*", line) and "###" not in line for line in logged)

    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if b"50 %" in line)
        server.terminate()
    assert line.rstrip().endswith(b"INFO Loading: streaming weights, 5.00 of 10.00 GB (50 %)")


def read_until(descriptor: int, part: str) -> str:
    """What comes from a terminal until `part` has come."""
    text, deadline = "", time.monotonic() + WAIT_S
    while part not in text:
        assert select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0], text
        text += os.read(descriptor, 4096).decode()
    return text
