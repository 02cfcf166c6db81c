"""How the server starts and ends, as processes: signals, an engine that dies, and nothing left behind."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import httpx
import msgspec
import psutil
import pytest
from front_harness import OPTIONS

from headrace.ipc.options import EngineOptions

COMMAND = [sys.executable, str(Path(__file__).parent / "serve_scripted.py")]
READY_LINE = "The server is fired up and ready to roll!"


class Served:
    """The server as a process, with what it wrote on stderr so far.

    Attributes:
        temporary: its temporary directory, which must be empty when it has ended.
    """

    def __init__(
        self, temporary: Path, model: str, *, first_restart_s: float = 0.1, **changes: object
    ) -> None:
        self.temporary = temporary
        options = msgspec.structs.replace(OPTIONS, engine=EngineOptions(model=model), port=0, **changes)
        self.process = subprocess.Popen(
            [*COMMAND, msgspec.json.encode(options).decode()],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary), "FIRST_RESTART_S": str(first_restart_s)},
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Served":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def line(self, part: str) -> str:
        """The first line that holds `part`, once it is there."""
        with self._more:
            assert self._more.wait_for(lambda: self._ended or self._find(part), 30), self.lines
            found = self._find(part)
        assert found, "".join(self.lines)
        return found

    def url(self) -> str:
        """Where it listens."""
        match = re.search(r"http://[\d.:]+", self.line("Listening on"))
        assert match
        return match.group()

    def engine(self) -> psutil.Process:
        """The engine's process."""
        self.line("Listening on")
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def end(self, timeout_s: float = 30) -> int:
        """Its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join()
        return code

    @property
    def text(self) -> str:
        """All of stderr."""
        return "".join(self.lines)

    def _find(self, part: str) -> str:
        return next((line for line in self.lines if part in line), "")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()


class Stream:
    """A streamed completion that a thread reads to its end.

    Attributes:
        begun: set with the first event.
        text: everything that came.
    """

    def __init__(self, url: str, **body: object) -> None:
        self.begun = threading.Event()
        self.text = ""
        self._body = {"prompt": "Say", "stream": True, **body}
        self._url = url
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self.begun.wait(30)

    def all(self) -> str:
        """The whole stream, once it has ended."""
        self._thread.join()
        return self.text

    def _read(self) -> None:
        url = f"{self._url}/v1/completions"
        with (
            contextlib.suppress(httpx.RemoteProtocolError),  # the stream was cut off
            httpx.stream("POST", url, json=self._body, timeout=60) as response,
        ):
            for piece in response.iter_text():
                self.text += piece
                self.begun.set()


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """Short enough for a socket's path, and checked to be empty at the end."""
    folder = tmp_path / "t"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def test_sigterm_ends_an_idle_server_with_everything_it_started(temporary: Path) -> None:
    with Served(temporary, "talks") as server:
        server.line(READY_LINE)
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert not engine.is_running()
        assert "Traceback" not in server.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_end_it_in_the_same_way(temporary: Path, number: signal.Signals) -> None:
    with Served(temporary, "talks") as server:
        server.line(READY_LINE)
        server.process.send_signal(number)
        assert server.end() == 0
        assert "Traceback" not in server.text


def test_the_socket_is_in_a_folder_of_this_user_alone(temporary: Path) -> None:
    with Served(temporary, "talks") as server:
        server.line(READY_LINE)
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_the_engine_is_in_a_process_group_of_its_own(temporary: Path) -> None:
    with Served(temporary, "talks") as server:
        engine = server.engine()
        assert os.getpgid(engine.pid) == engine.pid != os.getpgid(server.process.pid)
        assert engine.environ()["OMP_WAIT_POLICY"] == "PASSIVE"
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_running_answer_is_finished_and_a_new_one_refused_while_it_drains(temporary: Path) -> None:
    with Served(temporary, "endless") as server:
        server.line(READY_LINE)
        url = server.url()
        stream = Stream(url, max_tokens=2000)
        server.process.send_signal(signal.SIGTERM)
        server.line("Shutting down")
        response = httpx.post(f"{url}/v1/completions", json={"prompt": "Say"})
        assert response.status_code == 503
        assert response.headers["connection"] == "close"
        assert response.json()["error"]["code"] == "shutting_down"
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/ready").json() == {"ready": False, "phase": "shutting down"}
        assert server.process.poll() is None
        server.engine().send_signal(signal.SIGUSR1)
        assert stream.all().endswith("data: [DONE]\n\n")
        assert '"error"' not in stream.text
        assert server.end() == 0


def test_what_does_not_end_in_time_is_cut_off_with_an_error_event(temporary: Path) -> None:
    with Served(temporary, "endless", shutdown_timeout_s=0.1) as server:
        server.line(READY_LINE)
        stream = Stream(server.url(), max_tokens=2000)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        last = stream.all().split("\n\n")[-3]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"


def test_a_client_that_does_not_read_does_not_hold_the_end_up(temporary: Path) -> None:
    with Served(temporary, "flood", shutdown_timeout_s=0.1) as server:
        server.line(READY_LINE)
        host, _, port = server.url().removeprefix("http://").partition(":")
        body = json.dumps({"prompt": ["Say"] * 500, "max_tokens": 2000, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.sendall(head.encode() + body)
            server.line("flooded")
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 0
        assert "Traceback" not in server.text


def test_a_second_signal_ends_at_once(temporary: Path) -> None:
    with Served(temporary, "endless", shutdown_timeout_s=600) as server:
        server.line(READY_LINE)
        engine = server.engine()
        stream = Stream(server.url(), max_tokens=2000, ignore_eos=True)
        server.process.send_signal(signal.SIGTERM)
        server.line("Shutting down")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 128 + signal.SIGTERM
        assert not engine.is_running()
        assert not stream.all().endswith("data: [DONE]\n\n")


def test_a_signal_during_the_load_ends_it_too(temporary: Path) -> None:
    with Served(temporary, "loading") as server:
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert not engine.is_running()


def test_an_engine_that_does_not_listen_is_killed(temporary: Path) -> None:
    with Served(temporary, "deaf") as server:
        server.line(READY_LINE)
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert not engine.is_running()


def test_an_engine_that_dies_is_told_to_the_client_and_ends_a_server_without_restarts(
    temporary: Path,
) -> None:
    with Served(temporary, "endless", engine_restarts=0) as server:
        server.line(READY_LINE)
        stream = Stream(server.url(), max_tokens=2000)
        server.engine().kill()
        assert "was ended by SIGKILL" in stream.all()
        assert server.end() == 1
        assert "error: The engine process was ended by SIGKILL." in server.text
        assert "--mem-fraction-static" in server.text
        assert "Traceback" not in server.text


def test_an_engine_that_ends_during_the_load_ends_the_server_with_its_code(temporary: Path) -> None:
    with Served(temporary, "exits", engine_restarts=0) as server:
        assert server.end() == 1
        assert "error: The engine process ended with exit code 7." in server.text
        assert "Traceback" not in server.text


def test_a_failed_load_ends_the_server_with_the_engines_sentence(temporary: Path) -> None:
    with Served(temporary, "fails") as server:
        assert server.end() == 1
        assert "error: The bucket 'nowhere' does not exist." in server.text
        assert "Check the name." in server.text
        assert "Traceback" not in server.text


def test_a_front_that_is_killed_takes_its_engine_along(tmp_path: Path) -> None:
    with Served(tmp_path, "talks") as server:
        server.line(READY_LINE)
        engine = server.engine()
        server.process.kill()
        server.process.wait()
        engine.wait(30)


def test_a_port_in_use_is_said_before_anything_starts(temporary: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = msgspec.structs.replace(OPTIONS, port=port)
        ended = subprocess.run(
            [*COMMAND, msgspec.json.encode(options).decode()],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    assert ended.returncode == 1
    assert f"error: Cannot listen on 127.0.0.1:{port}: Address already in use." in ended.stderr
    assert "--port" in ended.stderr


def test_a_host_without_an_address_is_an_error(temporary: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, host="no-such-host.invalid", port=0)
    ended = subprocess.run(
        [*COMMAND, msgspec.json.encode(options).decode()], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "--host" in ended.stderr


def test_a_chat_template_that_does_not_exist_is_an_error(temporary: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, chat_template="/nowhere/template.jinja", port=0)
    ended = subprocess.run(
        [*COMMAND, msgspec.json.encode(options).decode()], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 1
    assert "/nowhere/template.jinja" in ended.stderr
