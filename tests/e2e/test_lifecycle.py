"""How a server ends: on a signal, by a kill, or with its engine; nothing of it is ever left."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from headrace.demo.store import SeaweedStore
from tests.e2e.serving import DEADLINE_S, Server, serving, surroundings, until

# Far less than the generation that is ended by it would take.
AT_ONCE_S = 20.0
ENDLESS = {"prompt": [7], "max_tokens": 30_000, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def silent_store() -> Iterator[dict[str, str]]:
    """The variables that lead to a store that takes connections and never answers: a load without end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }


@contextlib.contextmanager
def listing() -> Iterator[Server]:
    """A server whose engine waits for the store."""
    with silent_store() as environ, surroundings() as place:
        server = Server("--model-path", "s3://models/qwen", environ=environ, place=place)
        server.wait_until_listening()
        until(lambda: "Loading: listing" in server.text(), "an engine that lists")
        yield server


@contextlib.contextmanager
def streaming_weights(uri: str, store: SeaweedStore) -> Iterator[Server]:
    """A server whose engine has begun to receive weights, and imports torch beside it."""
    with surroundings() as place:
        server = Server("--model-path", uri, environ=store.environment(), place=place)
        server.wait_until_listening()

        def begun() -> bool:
            answer = server.get("/ready")
            return answer.status_code == 200 or answer.json()["bytes_done"] > 0

        until(begun, "weights on their way")
        yield server


@pytest.fixture(params=["listing", "streaming-weights"])
def loading(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server in two states of its load."""
    if request.param == "listing":
        with listing() as server:
            yield server
    else:
        uri = request.getfixturevalue("smollm2_uri")
        with streaming_weights(uri, request.getfixturevalue("seaweed")) as server:
            yield server


@pytest.fixture
def server(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """A server that is ready."""
    with serving("--model-path", tiny_uri, environ=seaweed.environment()) as running:
        yield running


@contextlib.contextmanager
def begun_stream(server: Server, **fields: object) -> Iterator[Iterator[str]]:
    """The data lines of a stream whose first chunk has been read."""
    body = {**ENDLESS, **fields, "stream": True}
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=body, timeout=DEADLINE_S, trust_env=False
    ) as response:
        lines = (line for line in response.iter_lines() if line)
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["finish_reason"] is None
        yield lines


def until_all_is_gone(server: Server) -> None:
    """Wait for the end of every process and of the private folder."""
    until(lambda: not server.place.processes(), "the end of all processes", timeout_s=AT_ONCE_S)
    assert server.place.socket_folders() == []


def test_sigterm_lets_a_running_answer_end_and_takes_no_new_request(server: Server) -> None:
    with begun_stream(server, max_tokens=1500, stream_options={"include_usage": True}) as lines:
        server.signal(signal.SIGTERM)
        until(lambda: "Shutting down" in server.text(), "the beginning of the end")
        refused = server.post("/v1/completions", {"prompt": [5], "max_tokens": 1})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert server.get("/ready").status_code == 503
        *_, usage, done = lines
    assert done == "data: [DONE]"
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 1500
    assert server.wait() == 0
    server.assert_nothing_left()


def test_a_second_sigterm_ends_at_once(server: Server) -> None:
    with begun_stream(server) as lines:
        server.signal(signal.SIGTERM)
        until(lambda: "Shutting down" in server.text(), "the beginning of the end")
        server.signal(signal.SIGTERM)
        assert server.wait(AT_ONCE_S) == 128 + signal.SIGTERM
        server.assert_nothing_left()
        with contextlib.suppress(httpx.TransportError):  # cut off anywhere
            assert list(lines)[-1:] != ["data: [DONE]"]


def test_ctrl_c_ends_the_server_cleanly(server: Server) -> None:
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.wait(AT_ONCE_S) == 0
    assert "Traceback" not in server.text()
    server.assert_nothing_left()


def test_sigterm_during_the_load_ends_the_server_cleanly(loading: Server) -> None:
    loading.signal(signal.SIGTERM)
    assert loading.wait(AT_ONCE_S) == 0
    assert "Traceback" not in loading.text() and "error:" not in loading.text()
    loading.assert_nothing_left()


def test_ctrl_c_during_the_load_ends_the_server_cleanly() -> None:
    with listing() as server:
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.wait(AT_ONCE_S) == 0
        assert "Traceback" not in server.text() and "error:" not in server.text()
        server.assert_nothing_left()


def test_a_front_that_is_killed_during_the_load_takes_its_engine_along(loading: Server) -> None:
    loading.engine()
    loading.signal(signal.SIGKILL)
    assert loading.wait() == -signal.SIGKILL
    until_all_is_gone(loading)


def test_a_front_that_is_killed_while_it_serves_takes_its_engine_along(server: Server) -> None:
    with begun_stream(server):
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        until_all_is_gone(server)


@pytest.fixture
def fragile(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """A server that is ready, and that ends with its engine."""
    flags = ["--engine-restarts", "0"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as running:
        yield running


def test_the_end_of_the_engine_is_told_to_clients_and_to_the_operator(fragile: Server) -> None:
    server = fragile
    engine = server.engine()

    def ask() -> httpx.Response:
        return server.post("/v1/completions", ENDLESS)

    with ThreadPoolExecutor(1) as threads:
        before = sum(engine.cpu_times()[:2])
        waiting: Future[httpx.Response] = threads.submit(ask)
        until(lambda: sum(engine.cpu_times()[:2]) > before + 0.1, "a generation under way")
        engine.send_signal(signal.SIGKILL)
        answer = waiting.result(AT_ONCE_S)
    assert answer.status_code >= 500
    assert answer.json()["error"]["code"] == "engine_failed"
    assert server.wait(AT_ONCE_S) == 1
    error = server.text().rpartition("error: ")[2]
    assert error.startswith("The engine process was ended by SIGKILL.")
    assert "--mem-fraction-static" in error
    assert "Traceback" not in server.text()
    server.assert_nothing_left()
