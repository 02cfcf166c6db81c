"""A client that goes away stops its generation, whatever state it is in."""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from front_harness import Front, running_front
from scripted_engine import endless, say, silent

from headrace.ipc.messages import Abort, Generate


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front(endless) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = endless
    front.engine.received.clear()


@contextlib.contextmanager
def asking(front: Front, path: str, **body: object) -> Iterator[socket.socket]:
    """A bare connection that has sent a request and closes at the end."""
    host, _, port = front.url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + content)
        yield connection


def test_leaving_a_stream_aborts_its_generation(front: Front) -> None:
    with asking(front, "/v1/completions", prompt="a", max_tokens=2000, stream=True) as connection:
        assert b"data: " in connection.recv(65536) + connection.recv(65536)
    assert front.engine.wait_for(Abort).rid == front.engine.wait_for(Generate).rid


def test_leaving_before_the_whole_answer_aborts_it(front: Front) -> None:
    with asking(front, "/v1/completions", prompt="a", max_tokens=2000):
        front.engine.wait_for(Generate)
    assert front.engine.wait_for(Abort).rid == front.engine.wait_for(Generate).rid


def test_leaving_before_the_first_token_aborts_it(front: Front) -> None:
    front.engine.script = silent
    messages = [{"role": "user", "content": "Hi"}]
    with asking(front, "/v1/chat/completions", messages=messages, stream=True):
        front.engine.wait_for(Generate)
    assert front.engine.wait_for(Abort).rid == front.engine.wait_for(Generate).rid


def test_leaving_aborts_every_prompt_of_the_request(front: Front) -> None:
    with asking(front, "/v1/completions", prompt=["a", "b", "c"], max_tokens=2000):
        front.engine.wait_for(Generate, 3)
    front.engine.wait_for(Abort, 3)
    assert {abort.rid for abort in front.engine.of(Abort)} == {g.rid for g in front.engine.of(Generate)}


def test_one_client_that_leaves_does_not_disturb_another(front: Front) -> None:
    with asking(front, "/v1/completions", prompt="a", max_tokens=2000):
        front.engine.wait_for(Generate)
        front.engine.script = say("Hello, world.")
    assert front.complete(max_tokens=5).json()["choices"][0]["text"] == "Hello"


def test_nothing_of_ended_requests_is_kept(front: Front) -> None:
    with asking(front, "/v1/completions", prompt=["a", "b"], max_tokens=2000, stream=True):
        front.engine.wait_for(Generate, 2)
    front.engine.wait_for(Abort, 2)
    front.engine.script = say("Hello, world.")
    front.complete(stop="wor", max_tokens=100)
    while front.client.admission.admitted_count:
        pass
    assert not front.client._in_flight


def test_leaving_during_the_load_leaves_nothing_to_generate() -> None:
    with running_front(load=False) as front:
        with asking(front, "/v1/completions", prompt="gone"):
            while front.client.admission.admitted_count == 0:
                pass
        while front.client.admission.admitted_count:
            pass
        front.engine.load()
        assert front.complete(prompt="stays").status_code == 200
        assert len(front.engine.of(Generate)) == 1
