"""One measuring process: started, let go when it is ready, and heard."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import headrace
from headrace.bench.child import BOOTSTRAP, GO, READY
from headrace.bench.scene import Scene
from headrace.errors import HeadraceError

_PACKAGE = Path(headrace.__file__).parent
_OURS = "from headrace.bench.child import main; main()"


class LoaderFailed(HeadraceError):
    """A loader did not load."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One loader, ready to run.

    Attributes:
        name: as reports call it.
        scene: what it is told.
        python: the interpreter that it lives in; None is ours.
        environ: of its process.
    """

    name: str
    scene: Scene
    python: str | None
    environ: Mapping[str, str]


def answer_of(contestant: Contestant, timeout_s: float, before_load: Callable[[], None]) -> dict[str, Any]:
    """What a fresh process answers to the contestant's scene.

    Args:
        before_load: called when all is imported and the load is about to begin.

    Raises LoaderFailed.
    """
    command = [contestant.python or sys.executable]
    command += ["-c", _OURS] if contestant.python is None else ["-P", "-c", BOOTSTRAP, str(_PACKAGE)]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(contestant.environ),
                start_new_session=True,  # with what it starts it is one group, which is ended as a whole
            )
        except OSError as error:
            raise LoaderFailed(
                f"{command[0]} cannot be run: {error.strerror}.", remedy="Check --peers-python."
            ) from None
        out_of_time = threading.Event()

        def end() -> None:
            out_of_time.set()
            _kill(process)

        timer = threading.Timer(timeout_s, end)
        timer.start()
        try:
            text = _talk(process, contestant.scene, before_load)
            process.wait()
        finally:
            timer.cancel()
            timer.join()
            _kill(process)
            process.wait()
        if out_of_time.is_set():
            raise LoaderFailed(
                f"{contestant.name} did not end within {timeout_s:.0f} s.",
                remedy="Give it more with --timeout.",
            )
        if process.returncode != 0 or not text:
            raise LoaderFailed(
                f"{contestant.name} ended with status {process.returncode}: {_last_line(errors)}",
                remedy=f"Leave it out of --vs, or see what it says: its Python is {command[0]}.",
            )
    answer: dict[str, Any] = json.loads(text)
    return answer


def _talk(process: "subprocess.Popen[bytes]", scene: Scene, before_load: Callable[[], None]) -> bytes:
    """The process's answer; nothing if it ended without one."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError), process.stdin, process.stdout:
        process.stdin.write(scene.to_json().encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line == READY:
            before_load()
            process.stdin.write(GO)
            process.stdin.flush()
            line = process.stdout.readline()
        return line
    return b""


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
