"""Engines that end before their time, with the real engine: what clients and probes are told, and that it comes back."""

import json
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from headrace.demo.store import SeaweedStore
from tests.e2e.forwarder import forwarding_to
from tests.e2e.serving import Server, serving, surroundings, until
from tests.e2e.test_lifecycle import ENDLESS, begun_stream, listing, streaming_weights

PROMPT = [5, 6, 7, 8]
AGAIN = "Ready again"


def kill(engine: psutil.Process) -> None:
    """Kill it and wait until it is gone."""
    engine.kill()
    engine.wait(60)


def is_stopped(process: psutil.Process) -> bool:
    """Every thread of it stands still."""
    stats = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def until_said(server: Server, text: str) -> None:
    """Wait for a line of the log; AssertionError if the server ends before."""

    def said() -> bool:
        assert server.process.poll() is None, server.text()
        return text in server.text()

    until(said, text)


def test_a_killed_engine_fails_its_requests_at_once_and_another_gives_the_same_text(
    tiny_uri: str, seaweed: SeaweedStore
) -> None:
    with (
        serving("--model-path", tiny_uri, environ=seaweed.environment()) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        before = server.complete(PROMPT, max_tokens=20)
        engine = server.engine()
        with begun_stream(server) as lines:
            waiting: Future[httpx.Response] = threads.submit(server.post, "/v1/completions", ENDLESS)
            until(lambda: "headrace_num_running_reqs 2.0" in server.get("/metrics").text, "two of them")
            kill(engine)
            *_, event, done = lines
        assert done == "data: [DONE]"
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_failed"
        answer = waiting.result()
        assert answer.status_code == 500
        assert "was ended by SIGKILL" in answer.json()["error"]["message"]
        assert server.get("/health").status_code == 200
        assert server.complete(PROMPT, max_tokens=20) == before  # waits for the load
        until_said(server, AGAIN)
        assert server.engine().pid != engine.pid
        assert server.get("/ready").json() == {"ready": True, "phase": "serving"}
        assert len(server.place.socket_folders()) == 1


def test_an_engine_that_is_killed_while_weights_come_is_started_again(
    smollm2_uri: str, seaweed: SeaweedStore
) -> None:
    with streaming_weights(smollm2_uri, seaweed) as server:
        kill(server.engine())
        until_said(server, "The engine is started again in")
        server.wait_until_ready()
        assert server.complete(PROMPT, max_tokens=2)
        assert server.stop() == 0


def test_sigterm_ends_a_server_whose_engine_is_being_started_again() -> None:
    with listing() as server:
        kill(server.engine())
        until_said(server, "The engine is started again in")
        assert server.stop() == 0
        assert "Traceback" not in server.text() and "error:" not in server.text()


def test_a_stopped_engine_with_work_is_ended_and_comes_back(tiny_uri: str, seaweed: SeaweedStore) -> None:
    flags = ["--watchdog-timeout", "3"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as server:
        engine = server.engine()
        with begun_stream(server) as lines:
            engine.send_signal(signal.SIGSTOP)
            *_, event, _ = lines
        assert "gave no sign of life for 3 s" in json.loads(event.removeprefix("data: "))["error"]["message"]
        until_said(server, AGAIN)
        assert not engine.is_running()
        assert server.complete(PROMPT, max_tokens=2)


def test_one_failure_too_many_ends_the_server_with_the_reason(tiny_uri: str, seaweed: SeaweedStore) -> None:
    flags = ["--engine-restarts", "1"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as server:
        first = server.engine()
        kill(first)
        until_said(server, "Starting an engine again")
        kill(server.engine())
        assert server.wait() == 1
        error = server.text().rpartition("error: ")[2]
        assert error.startswith("The engine has failed 2 times in a row and is not started again.")
        assert "was ended by SIGKILL" in error and "Traceback" not in server.text()
        server.assert_nothing_left()


def test_a_store_that_is_away_when_the_engine_is_started_again_is_asked_until_it_is_back(
    tiny_uri: str, seaweed: SeaweedStore
) -> None:
    environ = seaweed.environment()
    port = urlsplit(environ["AWS_ENDPOINT_URL"]).port
    assert port is not None
    with forwarding_to(port) as way:
        environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{way.port}"
        with serving("--model-path", tiny_uri, environ=environ) as server:
            before = server.complete(PROMPT, max_tokens=20)
            way.go_away()
            kill(server.engine())
            until_said(server, "(attempt 2 of 3)")
            assert "refused" in server.get("/ready").json()["reason"]
            way.come_back()
            assert server.complete(PROMPT, max_tokens=20) == before


def test_a_front_that_is_killed_takes_even_an_engine_along_that_is_stopped(
    tiny_uri: str, seaweed: SeaweedStore
) -> None:
    """The system wakes it: its process group has lost its last tie to the session."""
    with surroundings() as place:
        server = Server("--model-path", tiny_uri, environ=seaweed.environment(), place=place)
        server.wait_until_ready()
        engine = server.engine()
        with begun_stream(server):
            engine.send_signal(signal.SIGSTOP)
            until(lambda: is_stopped(engine), "an engine none of whose threads runs")
            server.signal(signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            until(lambda: not place.processes(), "the end of all processes")
        assert place.socket_folders() == []
