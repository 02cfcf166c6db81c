"""Every answer bears a request id: the client's own where it can be taken over."""

import contextlib
import json
import logging
import socket
from collections.abc import Iterator

import msgspec
import openai
import pytest
from front_harness import OPTIONS, Front, running_front
from scripted_engine import refuse

from headrace.ipc.messages import LogLine
from headrace.server import info
from headrace.server.openai import streaming
from headrace.server.seen.log_format import JsonFormatter
from headrace.server.seen.request_trace import request_id

HEADER = "x-request-id"


class _Lines(logging.Handler):
    """Keeps each record as the JSON log would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, str]] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@contextlib.contextmanager
def listening(name: str) -> Iterator[list[dict[str, str]]]:
    """What is logged under a name meanwhile."""
    handler = _Lines()
    logging.getLogger(name).addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger(name).removeHandler(handler)


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    """One that answers, and asks for a key."""
    with running_front(options=msgspec.structs.replace(OPTIONS, api_key="key")) as running:
        running.http.headers["Authorization"] = "Bearer key"
        yield running


def test_a_clients_own_id_comes_back(front: Front) -> None:
    assert front.http.get("/health", headers={HEADER: "order-17/3"}).headers[HEADER] == "order-17/3"


def test_without_one_each_request_gets_another(front: Front) -> None:
    ids = {front.http.get("/health").headers[HEADER] for _ in range(3)}
    assert len(ids) == 3
    assert all(len(made) == 32 for made in ids)


@pytest.mark.parametrize("given", ["x" * 129, "two words", "tab\there", "", "caf\xe9"])
def test_an_id_that_is_long_or_not_printable_is_replaced(front: Front, given: str) -> None:
    response = front.http.get("/health", headers={HEADER: given.encode("latin-1")})
    assert response.status_code == 200
    assert len(response.headers[HEADER]) == 32


def test_the_longest_sane_id_is_taken_over() -> None:
    assert request_id(b"~" * 128) == "~" * 128


def test_errors_before_and_after_the_routes_have_one_too(front: Front) -> None:
    for response, status in (
        (front.http.get("/nowhere", headers={HEADER: "mine"}), 404),
        (front.http.get("/v1/models", headers={HEADER: "mine", "Authorization": "none"}), 401),
        (front.http.get("/v1/completions", headers={HEADER: "mine"}), 405),
        (front.http.post("/v1/completions", headers={HEADER: "mine"}, content=b"{"), 400),
    ):
        assert (response.status_code, response.headers[HEADER]) == (status, "mine")


def test_a_stream_has_one(front: Front) -> None:
    body = {"prompt": "Say", "stream": True}
    response = front.http.post("/v1/completions", json=body, headers={HEADER: "mine"})
    assert response.headers[HEADER] == "mine"
    assert response.text.endswith("data: [DONE]\n\n")


def test_what_is_no_http_is_answered_with_one(front: Front) -> None:
    host, _, port = front.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"no http at all\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: " in answer


def test_openais_client_tells_it_of_an_error() -> None:
    with running_front(refuse(500, "engine_error", "Broken.")) as front:
        client = openai.OpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0)
        with pytest.raises(openai.InternalServerError) as failed:
            client.completions.create(model="tiny", prompt="Say", extra_headers={HEADER: "mine"})
        assert failed.value.request_id == "mine"


def test_a_defect_is_told_with_the_id_under_which_the_log_has_its_traceback(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> str:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(info, "_card", broken)
    with listening("uvicorn.error") as lines:
        response = front.http.get("/v1/models", headers={HEADER: "mine"})
        assert (response.status_code, response.headers[HEADER]) == (500, "mine")
        assert "under the request id mine" in response.json()["error"]["message"]
        while not lines:
            assert front.http.get("/health").status_code == 200
    (line,) = lines
    assert line["request_id"] == "mine"
    assert line["traceback"].endswith("RuntimeError: broken on purpose")


def test_a_defect_in_a_stream_is_told_with_the_id(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def breaks_at_the_second(content: object) -> bytes:
        calls.append(content)
        if len(calls) == 2:
            raise RuntimeError("broken on purpose")
        return b"data: " + msgspec.json.encode(content) + b"\n\n"

    monkeypatch.setattr(streaming, "event", breaks_at_the_second)
    body = {"prompt": "Say", "stream": True}
    response = front.http.post("/v1/completions", json=body, headers={HEADER: "mine"})
    assert "The server failed; its log says more under the request id mine." in response.text


def test_a_line_of_the_engine_belongs_to_no_request() -> None:
    with listening("headrace.engine") as lines, running_front() as front:
        # Sending a request reads what lies there: a line must lie there when that happens.
        for _ in range(20):
            front.engine.send(LogLine("warning", "One."))
            assert front.complete().status_code == 200
        while len(lines) < 20:
            assert front.http.get("/health").status_code == 200
    assert [line.get("request_id") for line in lines] == [None] * 20
