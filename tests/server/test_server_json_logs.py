"""--log-format json: every line of the server is an object that a program can read."""

import contextvars
import json
import logging
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_server_life import READY_LINE, Served, temporary

from headrace.server.seen.log_format import JsonFormatter, TextFormatter
from headrace.server.seen.request_trace import RequestTrace, begin

__all__ = ["temporary"]


def record(message: str, *args: object, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("headrace.part", logging.WARNING, __file__, 1, message, args, exc_info)


def parsed(line: logging.LogRecord) -> dict[str, str]:
    text = JsonFormatter().format(line)
    assert "\n" not in text
    found: dict[str, str] = json.loads(text)
    return found


def test_a_line_has_time_level_logger_and_message() -> None:
    line = record("%s is\nslow", "A disk")
    found = parsed(line)
    assert abs(datetime.fromisoformat(found.pop("time")).timestamp() - line.created) < 0.001
    assert found == {"level": "warning", "logger": "headrace.part", "message": "A disk is\nslow"}
    assert datetime.fromisoformat(parsed(line)["time"]).tzinfo == UTC


def test_a_traceback_is_a_string_in_the_same_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        found = parsed(record("It failed.", exc_info=sys.exc_info()))
    assert found["message"] == "It failed."
    assert found["traceback"].startswith("Traceback") and found["traceback"].endswith("ValueError: broken")


def test_a_name_that_is_no_unicode_does_not_break_the_line() -> None:
    assert parsed(record("a\ud800b"))["message"] == "a\\ud800b"


def test_lines_of_a_request_have_its_id_and_others_have_none() -> None:
    def within() -> tuple[dict[str, str], str]:
        begin(RequestTrace("mine", "/health", "GET", 0.0))
        return parsed(record("Here.")), TextFormatter().format(record("Here."))

    of_request, text = contextvars.copy_context().run(within)
    assert of_request["request_id"] == "mine"
    assert re.fullmatch(r"\[[\d :-]+\] WARNING \[mine\] Here\.", text)
    assert "request_id" not in parsed(record("Here."))
    assert re.fullmatch(r"\[[\d :-]+\] WARNING Here\.", TextFormatter().format(record("Here.")))


def entries(server: Served) -> list[dict[str, str]]:
    """Every line that the process wrote: each must be an object."""
    return [json.loads(line) for line in server.lines]


def test_the_whole_life_of_a_server_is_told_in_objects(temporary: Path) -> None:
    with Served(temporary, "talks", log_format="json", log_level="debug") as server:
        server.line(READY_LINE)
        url = re.search(r"http://[\d.:]+", server.line("Listening on"))
        assert url
        headers = {"X-Request-Id": "mine"}
        assert (
            httpx.post(f"{url.group()}/v1/completions", json={"prompt": "Say"}, headers=headers).status_code
            == 200
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        found = entries(server)
    assert {"time", "level", "logger", "message"} <= set(found[0])
    assert READY_LINE in [entry["message"] for entry in found]
    (access,) = [entry for entry in found if entry["logger"] == "uvicorn.access"]
    assert "POST /v1/completions" in access["message"] and access["request_id"] == "mine"
    assert found[-1]["message"] == "Bye."


def test_the_reason_of_an_end_is_the_last_object(temporary: Path) -> None:
    with Served(temporary, "fails", log_format="json") as server:
        assert server.end() == 1
        last = entries(server)[-1]
    assert last["level"] == "critical"
    assert last["message"] == "The bucket 'nowhere' does not exist. Check the name."
    assert "traceback" not in last


def test_the_variable_for_tracebacks_works_in_objects_too(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with Served(temporary, "fails", log_format="json") as server:
        assert server.end() == 1
        assert "EngineFailed" in entries(server)[-1]["traceback"]


def test_an_engine_that_is_killed_is_the_last_object_too(temporary: Path) -> None:
    with Served(temporary, "talks", log_format="json", engine_restarts=0) as server:
        server.line(READY_LINE)
        server.engine().kill()
        assert server.end() == 1
        last = entries(server)[-1]
    assert last["message"].startswith("The engine process was ended by SIGKILL.")


def test_a_port_that_is_taken_is_told_in_an_object_and_an_error_in_text_stays_one_line(
    temporary: Path,
) -> None:
    with Served(temporary, "talks", log_format="json", host="192.0.2.1") as server:
        assert server.end() == 1
        assert [entry["level"] for entry in entries(server)] == ["critical"]
    with Served(temporary, "talks", host="192.0.2.1") as server:
        assert server.end() == 1
        assert server.text.startswith("error: Cannot listen on 192.0.2.1:0")


def test_what_nobody_caught_goes_through_the_log() -> None:
    code = (
        "import threading, warnings\n"
        "from headrace.server.seen.logs import configure_logging\n"
        "configure_logging('info', 'json')\n"
        "warnings.warn('old')\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='worker')\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise KeyError('gone')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    warning, thread, end = (json.loads(line) for line in done.stderr.splitlines())
    assert (warning["logger"], warning["level"]) == ("py.warnings", "warning")
    assert "worker" in thread["message"] and "ZeroDivisionError" in thread["traceback"]
    assert end["level"] == "critical" and "KeyError: 'gone'" in end["traceback"]
    assert done.returncode == 1
