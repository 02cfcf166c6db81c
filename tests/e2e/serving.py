"""The server as its users run it: a command in a process of its own, in surroundings of its own."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

import headrace
from headrace.server.seen.startup_log import READY_LINE

COMMAND = (sys.executable, "-m", "headrace.launch_server")
# Far beyond what anything here takes on a busy machine; reached only by what hangs.
DEADLINE_S = 120.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Folders of one server's own, and the environment that leads there.

    Attributes:
        folder: all of them; its path is short, since sockets lie below it.
    """

    folder: Path

    @property
    def home(self) -> Path:
        """$HOME."""
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        """$TMPDIR."""
        return self.folder / "tmp"

    @property
    def cache(self) -> Path:
        """$HEADRACE_CACHE; no other process has this value, so it marks the server's processes."""
        return self.folder / "cache"

    @property
    def working(self) -> Path:
        """The working directory."""
        return self.folder / "work"

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """These variables and hardly anything else."""
        own = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(headrace.__file__).parents[1]),  # the very code that the tests import
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "HEADRACE_CACHE": str(self.cache),
        }
        return {**own, **variables}

    def processes(self) -> list[psutil.Process]:
        """Every living process that was started in these surroundings, whoever its parent is now."""
        mark = str(self.cache)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HEADRACE_CACHE") == mark:
                    found.append(process)
        return found

    def socket_folders(self) -> list[str]:
        """What lies in $TMPDIR by the names that the server gives its private folders."""
        return sorted(path.name for path in self.temporary.glob("headrace-*"))


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    """New surroundings; whatever is left in them is ended and removed afterwards."""
    place = Surroundings(Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp")))
    try:
        for folder in (place.home, place.temporary, place.cache, place.working):
            folder.mkdir()
        yield place
    finally:
        for process in place.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(place.folder)


def until(condition: Callable[[], bool], what: str, *, timeout_s: float = DEADLINE_S) -> None:
    """Return as soon as the condition holds; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(_POLL_S)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A started server.

    Attributes:
        process: the front, in a process group of its own.
        log: the file with everything that it and its engine write.
    """

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str],
        place: Surroundings,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Start it on a free port of loopback, unless the arguments say otherwise."""
        self.place = place
        self.log = place.folder / "log"
        if "--host" not in arguments:
            arguments += ("--host", "127.0.0.1")
        if "--port" not in arguments:
            arguments += ("--port", str(free_port()))
        self.port = int(arguments[arguments.index("--port") + 1])
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                env=place.environment(environ),
                cwd=place.working,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text()

    def wait_until_listening(self) -> None:
        """Wait until connections are taken, which is long before the model is there."""

        def listening() -> bool:
            assert self.process.poll() is None, self.text()
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return True
            return False

        until(listening, "a listening socket")

    def wait_until_ready(self) -> None:
        """Wait for the line that people wait for. AssertionError, with the log, if it ends before."""

        def ready() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text()}"
            return READY_LINE in self.text()

        until(ready, READY_LINE)

    def engine(self) -> psutil.Process:
        """The engine's process; waits for its start."""

        def engines() -> list[psutil.Process]:
            assert self.process.poll() is None, self.text()
            return [
                child
                for child in psutil.Process(self.process.pid).children()
                if "headrace.engine" in child.cmdline()
            ]

        until(lambda: bool(engines()), "an engine process")
        return engines()[0]

    def post(self, path: str, body: object, *, timeout_s: float = DEADLINE_S) -> httpx.Response:
        """Send JSON and wait for the whole answer."""
        return httpx.post(self.url + path, json=body, timeout=timeout_s, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        """Ask, and wait for the whole answer."""
        return httpx.get(self.url + path, timeout=DEADLINE_S, trust_env=False)

    def complete(self, prompt: str | list[int], **fields: object) -> str:
        """The greedy text that continues a prompt. AssertionError if the server refuses."""
        body = {"prompt": prompt, "temperature": 0, **fields}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def signal(self, number: int) -> None:
        """Send a signal to the front alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, and the exit code. AssertionError if a process or a private folder is left."""
        self.signal(signal.SIGTERM)
        code = self.wait()
        self.assert_nothing_left()
        return code

    def assert_nothing_left(self) -> None:
        """No process of the tree lives and no private folder lies about, as soon as the front has ended."""
        left = [f"{process.pid} {' '.join(process.cmdline())}" for process in self.place.processes()]
        assert not left, f"still running: {left}"
        assert self.place.socket_folders() == []


@contextlib.contextmanager
def serving(
    *arguments: str, environ: Mapping[str, str], command: Sequence[str] = COMMAND
) -> Iterator[Server]:
    """A server that is ready, and that ends cleanly on SIGTERM afterwards unless it has ended already."""
    with surroundings() as place:
        server = Server(*arguments, environ=environ, place=place, command=command)
        server.wait_until_ready()
        yield server
        if server.process.poll() is None:
            assert server.stop() == 0, server.text()


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command that could not serve left behind.

    Attributes:
        code: its exit code.
        output: all that it wrote.
        error: the lines from "error:" on, as one text; "" where there is none.
    """

    code: int
    output: str

    @property
    def error(self) -> str:
        match = re.search(r"^error: .*", self.output, re.MULTILINE | re.DOTALL)
        return match.group().strip() if match else ""


def run_to_its_end(*arguments: str, environ: Mapping[str, str], timeout_s: float = DEADLINE_S) -> Ended:
    """Start a server that is expected to end by itself. AssertionError if anything of it is left."""
    with surroundings() as place:
        server = Server(*arguments, environ=environ, place=place)
        code = server.wait(timeout_s)
        server.assert_nothing_left()
        assert sorted(place.temporary.iterdir()) == []
        return Ended(code, server.text())
