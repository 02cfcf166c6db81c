"""One cold start of a server: a new process with an empty metadata cache, from its exec to the first token of a client."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from headrace.bench.asking import Client
from headrace.errors import HeadraceError

Ask = Literal["at-once", "when-ready"]

PROMPT = "The capital of France is"
MAX_TOKENS = 8
_LAST_LINES = 15


class StartFailed(HeadraceError):
    """A server did not come up."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """What a start needs of its surroundings.

    Attributes:
        start: starts a command, in a session of its own, with an environment and a file for all that it writes.
        end: ends it.
        free_port: a port of 127.0.0.1 on which nothing listens.
    """

    start: Callable[[Sequence[str], Mapping[str, str], IO[bytes]], "subprocess.Popen[bytes]"]
    end: Callable[["subprocess.Popen[bytes]"], object]
    free_port: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that is started again and again.

    Attributes:
        command: its words; {model} and {port} in them are filled in.
    """

    name: str
    command: tuple[str, ...]

    def words(self, model: str, port: int) -> list[str]:
        """The command to be run. Only these two names in braces mean something: a word may hold JSON."""
        return [word.replace("{model}", model).replace("{port}", str(port)) for word in self.command]


@dataclass(frozen=True, slots=True)
class Phase:
    """A row of the server's own start-up table; seconds from its exec. See docs/operations.md."""

    name: str
    start_s: float
    end_s: float
    hidden_share: float | None


@dataclass(frozen=True, slots=True)
class ColdStart:
    """What one start took; seconds from its exec.

    Attributes:
        health_s: the first 200 of /health; None where there is no such route.
        ready_s: until requests were answered at once; None where nothing tells.
        first_token_s: until a client that asked as early as it was told to had the first text of its answer.
        text: that answer.
        text_again: the answer to the same request when all was loaded, computed anew where the server has a
            /flush_cache.
        phases: the server's own account; () where it gives none.
    """

    health_s: float | None
    ready_s: float | None
    first_token_s: float
    text: str
    text_again: str
    phases: tuple[Phase, ...] = field(default=())

    @property
    def first_byte_s(self) -> float | None:
        """When weights were first asked for; None where the server does not tell."""
        return min((phase.start_s for phase in self._transfers()), default=None)

    @property
    def last_byte_s(self) -> float | None:
        """When the last one was there; None where the server does not tell."""
        return max((phase.end_s for phase in self._transfers()), default=None)

    @property
    def after_last_byte_s(self) -> float | None:
        """From the last byte to the first token."""
        return None if self.last_byte_s is None else self.first_token_s - self.last_byte_s

    def _transfers(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.name == "transfer"]


def cold_start(
    contender: Contender,
    model: str,
    environ: Mapping[str, str],
    launcher: Launcher,
    *,
    ask: Ask,
    timeout_s: float,
) -> ColdStart:
    """Start it once, ask it, and end all its processes.

    Args:
        ask: "at-once" asks from the beginning on, so that a request waits for the load; "when-ready" asks when /ready
            (or /health, where there is none) answers 200.

    Raises StartFailed, with the server's last lines.
    """
    port = launcher.free_port()
    with tempfile.TemporaryDirectory(prefix="headrace-cold-") as cache, tempfile.TemporaryFile() as output:
        cold = {"HEADRACE_CACHE": cache, "VLLM_ASSETS_CACHE": cache}
        executed_at = time.monotonic()
        try:
            process = launcher.start(contender.words(model, port), {**environ, **cold}, output)
        except OSError as error:
            raise StartFailed(
                f"{contender.name} cannot be run: {contender.command[0]}: {error.strerror}.",
                remedy="Check the command in --vs.",
            ) from None

        def check() -> None:
            if process.poll() is not None:
                raise StartFailed(f"It ended with status {process.returncode} before it had answered.")

        try:
            return _watched(Client(port, executed_at + timeout_s, check), executed_at, ask)
        except HeadraceError as error:
            raise StartFailed(
                f"{contender.name}: {error.message}\n{_last_lines(output)}".rstrip(), remedy=error.remedy
            ) from None
        finally:
            launcher.end(process)
            # What it started and left behind is of its group still.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _watched(client: Client, executed_at: float, ask: Ask) -> ColdStart:
    health_at: list[float | None] = []
    ready_at = None
    stop = threading.Event()
    if ask == "when-ready":
        health_at.append(client.wait_for("/health"))
        ready_at = client.wait_for("/ready") or health_at[0]
        first = client.complete(PROMPT, MAX_TOKENS)
    else:
        # Errors of the thread are those of the request, which tells them.
        def look() -> None:
            with contextlib.suppress(HeadraceError):
                health_at.append(client.wait_for("/health", stop))

        thread = threading.Thread(target=look, name="health", daemon=True)
        thread.start()
        try:
            first = client.complete(PROMPT, MAX_TOKENS)
        finally:
            stop.set()
        thread.join()
    info = client.get_json("/server_info") or {}
    if info.get("engine_restarts"):
        raise StartFailed("Its engine failed and was started again: this is no start to be measured.")
    if info:
        client.get_json("/flush_cache")
    again = client.complete(PROMPT, MAX_TOKENS)
    return ColdStart(
        health_s=_since(executed_at, health_at[0] if health_at else None),
        ready_s=_since(executed_at, ready_at) if ready_at is not None else info.get("ready_s"),
        first_token_s=first.first_token_at - executed_at,
        text=first.text,
        text_again=again.text,
        phases=_phases(info),
    )


def _since(executed_at: float, at: float | None) -> float | None:
    return None if at is None else at - executed_at


def _phases(info: dict[str, Any]) -> tuple[Phase, ...]:
    return tuple(
        Phase(row["name"], row["start_s"], row["end_s"], row.get("hidden_share"))
        for row in info.get("phases", ())
    )


def _last_lines(output: IO[bytes]) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").rstrip().splitlines()[-_LAST_LINES:])
