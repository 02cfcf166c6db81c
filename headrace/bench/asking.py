"""The client of a server that is starting: it asks again and again until there is an answer, and reads that as it comes."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError

HOST = "127.0.0.1"
# What every server is told to call its model.
SERVED_NAME = "m"
_AGAIN_S = 0.005
_CONNECTION_ERRORS = (OSError, http.client.HTTPException)


class NoAnswer(HeadraceError):
    """A server refused for good, or did not answer within the time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one streaming request.

    Attributes:
        first_token_at: time.monotonic() when its first text came.
        text: the whole of it.
    """

    first_token_at: float
    text: str


class Client:
    """Asks one server on loopback.

    `check` is called between two tries: it raises where there is no use in asking on. The deadline is one of
    time.monotonic().
    """

    def __init__(self, port: int, deadline: float, check: Callable[[], None]) -> None:
        self._port = port
        self._deadline = deadline
        self._check = check

    def wait_for(self, path: str, stop: threading.Event | None = None) -> float | None:
        """When `path` first answered 200, on time.monotonic()'s clock; None for a path that does not exist here.

        Also None when `stop` has been set before. Raises NoAnswer at the deadline.
        """
        while stop is None or not stop.is_set():
            with contextlib.suppress(*_CONNECTION_ERRORS), self._connection() as connection:
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
                if response.status == 200:
                    return time.monotonic()
                if response.status == 404:
                    return None
            self._wait(f"200 from {path}")
        return None

    def complete(self, prompt: str, max_tokens: int) -> Answer:
        """The greedy answer to a streaming request, asked again where the server refuses connections or says 503.

        Raises NoAnswer for any other refusal, and at the deadline.
        """
        body = json.dumps(
            {
                "model": SERVED_NAME,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
            }
        )
        while True:
            with contextlib.suppress(*_CONNECTION_ERRORS), self._connection() as connection:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status == 200:
                    return _read(response)
                said = response.read().decode(errors="replace")
                if response.status != 503:
                    raise NoAnswer(f"/v1/completions answered {response.status}: {said[:500]}")
            self._wait("a token")

    def get_json(self, path: str) -> dict[str, Any] | None:
        """The object that `path` answers with 200, asked for once; None for any other answer."""
        with contextlib.suppress(*_CONNECTION_ERRORS, ValueError), self._connection() as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            content = json.loads(response.read())
            if response.status == 200 and isinstance(content, dict):
                return content
        return None

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        left_s = max(0.1, self._deadline - time.monotonic())
        connection = http.client.HTTPConnection(HOST, self._port, timeout=left_s)
        try:
            yield connection
        finally:
            connection.close()

    def _wait(self, what: str) -> None:
        self._check()
        if time.monotonic() > self._deadline:
            raise NoAnswer(f"There was not {what} within the time.", remedy="Give it more with --timeout.")
        time.sleep(_AGAIN_S)


def _read(response: http.client.HTTPResponse) -> Answer:
    """The answer to its end. Raises NoAnswer for one that breaks off, or has no text."""
    text, first_token_at = "", None
    for line in response:
        if line.strip() == b"data: [DONE]":
            break
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise NoAnswer(f"The answer broke off: {json.dumps(event['error'])[:500]}")
        piece = event["choices"][0].get("text") if event.get("choices") else None
        if piece:
            first_token_at = first_token_at or time.monotonic()
            text += piece
    else:
        raise NoAnswer("The answer's stream ended without [DONE].")
    if first_token_at is None:
        raise NoAnswer("The answer had no text.")
    return Answer(first_token_at, text)
