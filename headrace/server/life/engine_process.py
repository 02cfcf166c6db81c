"""The engine's process: started first of all, told what to do on its standard input, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import HeadraceError
from headrace.ipc.front_channel import make_address, remove_address
from headrace.ipc.options import EngineOptions, EngineStart


def _engine_command() -> tuple[str, ...]:
    """The engine by this Python, which `-m` alone would have import whatever lies in the working directory first.

    `-P` keeps it from that, but where this process was started so (`python -m headrace` in a clone).
    """
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        here = ""
    safe = () if sys.path[:1] in ([""], [here]) else ("-P",)
    return (sys.executable, *safe, "-m", "headrace.engine")


ENGINE_COMMAND = _engine_command()


class EngineNotStarted(HeadraceError):
    """The system gives no process, or no place for the socket to it."""


class EngineProcess:
    """A running engine, in a process group of its own: a terminal's Ctrl-C reaches the front only.

    Its standard input stays open for as long as it may live; the end of it ends the engine, also when the
    front dies without a word.

    Attributes:
        address: of its channel, in a private folder of its own.
        executed_s: time.monotonic() just before its exec.
    """

    def __init__(self, options: EngineOptions, command: Sequence[str]) -> None:
        """Start it. Raises EngineNotStarted."""
        # Spinning OpenMP threads would take the cores from the front and from the threads that fetch.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        try:
            self.address = make_address()
        except OSError as error:
            raise EngineNotStarted(
                f"There is no place for the socket between the server's two processes: {error.strerror}.",
                remedy="Make /tmp writable (where a container's file system is read-only: mount an emptyDir or a tmpfs "
                "there), or set TMPDIR to a folder that is.",
            ) from None
        self.executed_s = time.monotonic()
        start = EngineStart(self.address, options, executed_s=self.executed_s)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=environment, process_group=0, bufsize=0
            )
        except OSError as error:
            remove_address(self.address)
            raise EngineNotStarted(
                f"The engine's process cannot be started: {error.strerror}.",
                remedy="The machine, or a limit of this user or container, lacks processes or memory.",
            ) from None
        self._waiter: threading.Thread | None = None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: its exit is told by `watch`
            self._process.stdin.write(msgspec.json.encode(start) + b"\n")

    @property
    def pid(self) -> int:
        """The process id, which is also its group's."""
        return self._process.pid

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call `ended(returncode)` from a thread when the process has ended. Call once."""
        assert self._waiter is None
        self._waiter = threading.Thread(
            target=lambda: ended(self._process.wait()), name="engine-waiter", daemon=True
        )
        self._waiter.start()

    def close_stdin(self) -> None:
        """Ask the engine to end. May be called twice."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def abort(self) -> None:
        """Have the engine write the stacks of its threads to stderr and end, unless it is stopped altogether."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGABRT)

    def kill(self) -> None:
        """End the engine and what it has started, now, wait for its end, and remove its folder.

        May be called when it has ended, and more than once.
        """
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._waiter is not None:
            self._waiter.join()
        self._process.wait()
        self.close_stdin()
        remove_address(self.address)


def exit_sentence(returncode: int) -> str:
    """How a process ended, for a person."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"
