"""Other weights under a server that is asked all the time, and what ends it meanwhile."""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import DEADLINE_S, Server, serving, until
from tests.engine.changing import Gate, gate, objects_of
from tests.faults.opening import environment_of
from tests.faults.server import FaultServer, error_answer, fault_server
from tests.tiny_models import make_tiny, save_checkpoint

A, B = "s3://bucket/a", "s3://bucket/b"
PROMPT = [5, 6, 7, 8]
CHATTERS = 4
FLAGS = ("--model-path", A, "--device", "cpu", "--max-total-tokens", "8192", "--served-model-name", "tiny")
UPDATE = "/update_weights_from_disk"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of one shape, of which the second has no tokenizer."""
    place = tmp_path_factory.mktemp("two")
    for seed, name in enumerate("ab", start=1):
        model = make_tiny("llama", seed=seed, max_position_embeddings=4096)
        save_checkpoint(model, place / name, shards=2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / "b" / name).unlink()
    return {name: place / name for name in "ab"}


@contextmanager
def stored(folders: dict[str, Path]) -> Iterator[FaultServer]:
    """Both in a store."""
    with fault_server({}) as running:
        for name, folder in folders.items():
            running.objects |= objects_of(folder, name)
        yield running


@pytest.fixture
def store(folders: dict[str, Path]) -> Iterator[FaultServer]:
    """A store that a test may do something to."""
    with stored(folders) as running:
        yield running


@pytest.fixture(scope="module")
def steady(folders: dict[str, Path]) -> Iterator[Server]:
    """A server for tests that leave it serving, whichever of the two."""
    with stored(folders) as store, serving(*FLAGS, environ=environment_of(store)) as running:
        yield running


@pytest.fixture
def server(store: FaultServer) -> Iterator[Server]:
    """It serves A."""
    with serving(*FLAGS, environ=environment_of(store)) as running:
        yield running


def text(server: Server) -> str:
    return server.complete(PROMPT, max_tokens=24, ignore_eos=True)


def update(server: Server, model: str, **fields: object) -> httpx.Response:
    return server.post(UPDATE, {"model_path": model, **fields})


def served(server: Server) -> str:
    path: str = server.get("/model_info").json()["model_path"]
    return path


def streamed(server: Server) -> str:
    """The same text as a stream. AssertionError where it does not come to its end."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "ignore_eos": True, "stream": True}
    pieces: list[str] = []
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=body, timeout=DEADLINE_S, trust_env=False
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return "".join(pieces)
            if line:
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                pieces.append(chunk["choices"][0]["text"])
    raise AssertionError(f"the stream ended early: {pieces}")


def test_under_load_every_answer_is_wholly_one_models_and_none_fails(steady: Server) -> None:
    server = steady
    assert update(server, A).status_code == 200
    old = text(server)
    enough = threading.Event()

    def chat(number: int) -> list[str]:
        texts: list[str] = []
        while not enough.is_set():
            texts.append(text(server) if number % 2 else streamed(server))
        return texts

    with ThreadPoolExecutor(CHATTERS) as threads:
        chatters = [threads.submit(chat, number) for number in range(CHATTERS)]
        try:
            for model in (B, A, B):
                answer = update(server, model)
                assert answer.status_code == 200, answer.text
                assert served(server) == model
            new = text(server)
        finally:
            enough.set()
        texts = [each for chatter in chatters for each in chatter.result()]
    assert old != new
    assert set(texts) == {old, new}


def test_memory_is_given_back_and_comes_again_with_the_same_text(steady: Server) -> None:
    server = steady
    before = text(server)
    assert server.post("/release_memory_occupation", {}).status_code == 200
    refused = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "memory_released"
    assert int(refused.headers["Retry-After"]) > 0
    assert server.get("/ready").json()["phase"] == "memory released"
    assert server.get("/health").status_code == server.get("/health_generate").status_code == 200
    assert server.get("/resume_memory_occupation").status_code == 200
    assert server.get("/ready").status_code == 200
    assert text(server) == before


def begun_update(server: Server, held: Gate, threads: ThreadPoolExecutor) -> "Future[httpx.Response]":
    """An update that has begun to read weights."""
    changing = threads.submit(lambda: update(server, B))
    assert held.reached.wait(DEADLINE_S)
    return changing


def kill_engine(server: Server) -> None:
    """Kill it, and wait for the next one to be ready."""
    count = server.text().count("Ready again")
    server.engine().send_signal(signal.SIGKILL)
    until(lambda: server.text().count("Ready again") > count, "a new engine")


def test_an_engine_that_is_killed_comes_back_with_what_was_served(server: Server, store: FaultServer) -> None:
    old = text(server)
    with gate(store, "b") as held, ThreadPoolExecutor(1) as threads:
        changing = begun_update(server, held, threads)
        kill_engine(server)
        assert changing.result().status_code >= 500
    assert served(server) == A
    assert text(server) == old
    assert update(server, B).status_code == 200
    new = text(server)
    assert new != old
    kill_engine(server)
    assert served(server) == B
    assert text(server) == new


def test_sigterm_during_a_change_ends_the_server_cleanly(server: Server, store: FaultServer) -> None:
    with gate(store, "b") as held, ThreadPoolExecutor(1) as threads:
        changing = begun_update(server, held, threads)
        server.signal(signal.SIGTERM)
        answer = changing.result()
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"
        assert server.wait() == 0
    assert "Traceback" not in server.text()
    server.assert_nothing_left()


def test_where_weights_are_lost_in_place_the_engine_starts_again_on_the_old_ones(store: FaultServer) -> None:
    command = (sys.executable, str(Path(__file__).parent / "serve_cramped.py"))
    with serving(*FLAGS, environ=environment_of(store), command=command) as server:
        old = text(server)
        refused = update(server, B)
        assert refused.status_code == 400
        assert "in_place=true" in refused.json()["message"]
        assert text(server) == old
        store.refuse = lambda asked: (
            error_answer(403, "AccessDenied")
            if asked.path.startswith("/bucket/b/") and asked.range is not None and asked.range[0] > 0
            else None
        )
        lost = update(server, B, in_place=True)
        assert lost.status_code == 400
        assert "overwritten in part" in lost.json()["message"]
        assert f"starts again on {A}" in lost.json()["message"]
        # A request waits for the new engine.
        assert text(server) == old
        assert served(server) == A
        assert "Traceback" not in server.text()
