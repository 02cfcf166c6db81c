"""The engine's process: started first of all, told what to do on its standard input, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from headrace.ipc.options import EngineStart

ENGINE_COMMAND = (sys.executable, "-m", "headrace.engine")


class EngineProcess:
    """A running engine, in a process group of its own: a terminal's Ctrl-C reaches the front only.

    Its standard input stays open for as long as it may live; the end of it ends the engine, also when the
    front dies without a word.
    """

    def __init__(self, start: EngineStart, command: Sequence[str]) -> None:
        # Spinning OpenMP threads would take the cores from the front and from the threads that fetch.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, process_group=0, bufsize=0
        )
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

    def kill(self) -> None:
        """End the engine and what it has started, now, and wait for its end. May be called when it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._waiter is not None:
            self._waiter.join()
        self._process.wait()
        self.close_stdin()


def exit_sentence(returncode: int) -> str:
    """How a process ended, for a person."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"
