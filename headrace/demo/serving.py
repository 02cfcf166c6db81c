"""A `headrace serve` of our own, and one question to it. Standard library only."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.demo.child import end_child, start_child
from headrace.errors import HeadraceError

_HOST = "127.0.0.1"
_STANDARD_ERROR = 2
_POLL_INTERVAL_S = 0.02
_READY_TIMEOUT_S = 600.0
_ANSWER_TIMEOUT_S = 120.0


class DemoFailed(HeadraceError):
    """The server did not start or did not answer."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running `headrace serve`.

    Attributes:
        executed_at: time.monotonic() just before its exec.
    """

    process: subprocess.Popen[bytes]
    model: str
    port: int
    executed_at: float

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{_HOST}:{self.port}"

    def stop(self) -> None:
        """End it and its engine."""
        end_child(self.process, timeout_s=15.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said.

    Attributes:
        first_token_at: time.monotonic() when its first token came.
    """

    text: str
    first_token_at: float


@dataclass(frozen=True, slots=True)
class StartUp:
    """How the server came up.

    Attributes:
        phases: (name, start, end) in seconds, as the server's own table has them.
        bytes_streamed: weight bytes that came from the store.
    """

    phases: tuple[tuple[str, float, float], ...]
    bytes_streamed: int


def start_server(model: str, port: int, environment: Mapping[str, str]) -> Server:
    """Execute `headrace serve`; its messages go to our standard error."""
    command = [sys.executable, "-m", "headrace", "serve", model, "--host", _HOST, "--port", str(port)]
    command += ["--log-level", "warning"]
    executed_at = time.monotonic()
    process = start_child(command, environment=environment, stdout=_STANDARD_ERROR)
    return Server(process, model, port, executed_at)


def wait_until_ready(
    server: Server, on_phase: Callable[[str], None], check: Callable[[], None] = lambda: None
) -> None:
    """Wait for /ready.

    Args:
        on_phase: told of each new phase of the start-up.
        check: called again and again; ends the wait by raising.

    Raises DemoFailed if the server ends or takes too long.
    """
    phase = ""
    while True:
        check()
        status, body = _ready_status(server)
        if status == 200:
            return
        if (code := server.process.poll()) is not None:
            raise DemoFailed(
                f"`headrace serve {server.model}` ended with status {code} before it was ready.",
                remedy="Its own message is above.",
            )
        if time.monotonic() - server.executed_at > _READY_TIMEOUT_S:
            raise DemoFailed(f"The server was not ready after {_READY_TIMEOUT_S:.0f} s (phase: {phase}).")
        if body.get("phase", phase) != phase:
            phase = body["phase"]
            on_phase(phase)
        time.sleep(_POLL_INTERVAL_S)


def ask(server: Server, path: str, request: Mapping[str, Any], on_text: Callable[[str], None]) -> Answer:
    """POST to a streaming route of the OpenAI API and collect the answer's text.

    Args:
        path: /v1/completions or /v1/chat/completions.
        on_text: told of each piece of text as it comes.

    Raises DemoFailed for anything but a whole answer.
    """
    body = {"model": server.model, "temperature": 0, **request, "stream": True}
    connection = http.client.HTTPConnection(_HOST, server.port, timeout=_ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise DemoFailed(f"{path} answered {response.status}: {response.read().decode(errors='replace')}")
        text, first_token_at = "", None
        for event in _events(response):
            if "error" in event:
                raise DemoFailed(f"The answer broke off: {event['error'].get('message', event['error'])}")
            piece = _text_of(event)
            if piece:
                first_token_at = first_token_at or time.monotonic()
                text += piece
                on_text(piece)
    except (OSError, http.client.HTTPException) as error:
        raise DemoFailed(f"The server at {server.url} did not answer {path}: {error}.") from None
    finally:
        connection.close()
    # A model may also answer with nothing but its end.
    return Answer(text, first_token_at or time.monotonic())


def read_start_up(server: Server) -> StartUp:
    """The server's own account, from GET /server_info. Raises DemoFailed."""
    status, info = _get(server, "/server_info")
    if status != 200:
        raise DemoFailed(f"/server_info answered {status}.")
    phases = tuple((row["name"], row["start_s"], row["end_s"]) for row in info["phases"])
    return StartUp(phases, info["bytes_streamed"])


def _ready_status(server: Server) -> tuple[int, dict[str, Any]]:
    try:
        return _get(server, "/ready")
    except DemoFailed:  # the port is not open yet
        return 0, {}


def _get(server: Server, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(_HOST, server.port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DemoFailed(f"The server at {server.url} did not answer {path}: {error}.") from None
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event; the stream must end with [DONE]."""
    for line in response:
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise DemoFailed("The answer's stream ended without [DONE].")


def _text_of(event: Mapping[str, Any]) -> str:
    if not event.get("choices"):  # a usage chunk
        return ""
    choice = event["choices"][0]
    text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    return text or ""
