"""Many clients at once, some of whom leave: nobody's answer depends on the others, and nothing is left over."""

import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import httpx
import psutil
import pytest

from headrace.demo.store import SeaweedStore
from tests.e2e.serving import DEADLINE_S, Server, serving, until
from tests.tiny_models import VOCAB_SIZE

CLIENTS = 32
POOL_TOKENS = 32_768
# Beside this, a generation that fills the pool takes for ever.
SOON_S = 25.0


@dataclass(frozen=True, slots=True)
class Client:
    """What a client asks, and when it leaves.

    Attributes:
        leaves_after: streamed chunks that it waits for before it goes away; None stays to the end.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool
    leaves_after: int | None

    def body(self) -> dict[str, Any]:
        """Its request."""
        return {
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.stream,
        }


def make_clients() -> list[Client]:
    """Short and long ones; every third leaves, at once or in the middle."""
    chance = random.Random(7)
    clients = []
    for number in range(CLIENTS):
        prompt = tuple(chance.randrange(3, VOCAB_SIZE) for _ in range(chance.choice((1, 5, 31, 33, 120))))
        stays = number % 3 != 0
        max_tokens = chance.choice((1, 8, 40, 64)) if stays else 2000
        clients.append(Client(prompt, max_tokens, number % 2 == 0, None if stays else chance.randrange(8)))
    return clients


@pytest.fixture(scope="module")
def server(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """Eight run at once, prompts come in chunks, and the pool is no larger than the longest request."""
    flags = ["--dtype", "float32", "--device", "cpu", "--max-total-tokens", str(POOL_TOKENS)]
    flags += ["--max-running-requests", "8", "--chunked-prefill-size", "32"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as running:
        yield running


def streamed_texts(response: httpx.Response) -> Iterator[str]:
    """The text of each chunk, to the [DONE] that must end it."""
    last = ""
    for line in response.iter_lines():
        if line.startswith("data: "):
            last = line.removeprefix("data: ")
            if last != "[DONE]":
                yield json.loads(last)["choices"][0]["text"]
    assert last == "[DONE]"


def stream(server: Server, body: dict[str, Any], leaves_after: int | None = None) -> str:
    """The streamed text, all of it or that of so many chunks, after which the connection is closed."""
    texts: list[str] = []
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=body, timeout=DEADLINE_S, trust_env=False
    ) as response:
        assert response.status_code == 200
        chunks = streamed_texts(response)
        while leaves_after is None or len(texts) <= leaves_after:
            text = next(chunks, None)
            if text is None:
                break
            texts.append(text)
    return "".join(texts)


def send_and_keep(server: Server, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and nothing has been read."""
    content = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def ask(server: Server, client: Client, start: Barrier) -> str | None:
    """The client's text; None if it went away."""
    start.wait()
    if client.stream:
        text = stream(server, client.body(), client.leaves_after)
        return text if client.leaves_after is None else None
    if client.leaves_after is not None:
        send_and_keep(server, client.body()).close()
        return None
    return server.complete(list(client.prompt), max_tokens=client.max_tokens, ignore_eos=True)


def until_idle(engine: psutil.Process) -> None:
    """Wait until the engine has used no CPU time in ten looks one after another."""
    seen: list[float] = []

    def idle() -> bool:
        times = engine.cpu_times()
        seen.append(times.user + times.system)
        return len(seen) > 10 and seen[-11] == seen[-1]

    until(idle, "an engine that blocks")


def assert_the_whole_pool_is_free(server: Server) -> None:
    """A request that needs every page starts to be answered soon; then it goes away, too."""
    body = {
        "prompt": [5] * 64,
        "max_tokens": POOL_TOKENS - 64,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=body, timeout=SOON_S, trust_env=False
    ) as response:
        assert response.status_code == 200
        next(streamed_texts(response))


def test_each_client_gets_what_it_gets_alone_though_others_leave(server: Server) -> None:
    clients = make_clients()
    staying = [client for client in clients if client.leaves_after is None]
    assert CLIENTS // 2 < len(staying) < CLIENTS
    alone = {
        client: server.complete(list(client.prompt), max_tokens=client.max_tokens, ignore_eos=True)
        for client in staying
    }
    assert len(set(alone.values())) > len(staying) // 2  # the prompts matter
    start = Barrier(CLIENTS)
    with ThreadPoolExecutor(CLIENTS) as threads:
        together = list(threads.map(lambda client: ask(server, client, start), clients))
    for client, text in zip(clients, together, strict=True):
        if client.leaves_after is None:
            assert text == alone[client]
    until_idle(server.engine())
    assert_the_whole_pool_is_free(server)


def test_a_streaming_client_that_leaves_stops_its_generation(server: Server) -> None:
    body = {
        "prompt": [7],
        "max_tokens": POOL_TOKENS - 1,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    assert stream(server, body, leaves_after=2)
    assert_the_whole_pool_is_free(server)
    until_idle(server.engine())


def test_a_client_that_leaves_without_an_answer_stops_its_generation(server: Server) -> None:
    engine = server.engine()
    until_idle(engine)
    before = sum(engine.cpu_times()[:2])
    body = {"prompt": [7], "max_tokens": POOL_TOKENS - 1, "temperature": 0, "ignore_eos": True}
    connection = send_and_keep(server, body)
    until(lambda: sum(engine.cpu_times()[:2]) > before + 0.2, "a generation under way")
    connection.close()
    assert_the_whole_pool_is_free(server)
    until_idle(engine)
    assert server.get("/health_generate").status_code == 200
