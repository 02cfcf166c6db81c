"""What is told before, during and after the load, and what waits for it."""

import logging
import threading

import httpx
import msgspec
import pytest
from byte_model import CONTEXT_LENGTH, model_info
from front_harness import OPTIONS, Front, running_front
from scripted_engine import READY, say, silent

from headrace import __version__
from headrace.ipc.messages import Abort, Generate, LoadFailed, LoadProgress, LogLine
from headrace.server import probes
from headrace.server.life.fault import EngineFailed
from headrace.server.seen.startup_log import READY_LINE


def phase(front: Front) -> object:
    return front.http.get("/ready").json()["phase"]


def until_phase(front: Front, wanted: str) -> None:
    while phase(front) != wanted:
        pass


def test_while_the_model_loads_the_process_is_alive_and_not_ready() -> None:
    with running_front(load=False) as front:
        assert front.http.get("/health").status_code == 200
        assert front.http.get("/ping").status_code == 200
        for path in ("/ready", "/v1/models", "/v1/models/tiny", "/health_generate", "/model_info"):
            response = front.http.get(path)
            assert response.status_code == 503, path
            assert response.headers["retry-after"] == "5"


def test_ready_tells_the_loads_progress() -> None:
    with running_front(load=False) as front:
        front.engine.send(LoadProgress("streaming weights", 250, 1000, retries=2, hedges=1, concurrency=8))
        until_phase(front, "streaming weights")
        report = front.http.get("/ready").json()
        assert report == {
            "ready": False,
            "phase": "streaming weights",
            "bytes_done": 250,
            "bytes_total": 1000,
            "gb_per_s": 0.0,
            "eta_s": None,
            "retries": 2,
            "hedges": 1,
            "concurrency": 8,
        }


def test_a_request_during_the_load_is_answered_when_it_ends() -> None:
    with running_front(load=False) as front:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(front.complete(max_tokens=5)))
        asking.start()
        front.engine.load()
        asking.join()
        assert answers[0].json()["choices"][0]["text"] == "Hello"


def test_a_wrong_request_is_refused_before_the_load_has_ended() -> None:
    with running_front(load=False) as front:
        assert front.complete(temperature=-1, model="other").status_code == 404
        front.engine.send(model_info())
        assert front.complete(temperature=-1).status_code == 400
        assert (
            front.complete(prompt="a" * CONTEXT_LENGTH).json()["error"]["code"] == "context_length_exceeded"
        )


def test_a_request_does_not_wait_for_the_load_without_end() -> None:
    with running_front(load=False, options=msgspec.structs.replace(OPTIONS, queue_timeout_s=0.05)) as front:
        response = front.complete()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_loading"
        assert "--queue-timeout" in response.json()["error"]["message"]
        assert response.headers["retry-after"] == "5"


ONLY_WHILE_SERVING = ("/v1/models", "/v1/models/tiny", "/model_info", "/health_generate", "/flush_cache")


@pytest.mark.parametrize("path", ONLY_WHILE_SERVING)
def test_a_server_that_ends_is_not_said_to_load(path: str) -> None:
    with running_front() as front:
        front.loop.call_soon_threadsafe(front.client.drain)
        until_phase(front, "shutting down")
        response = front.http.get(path)
        assert (response.status_code, response.headers["connection"]) == (503, "close")
        assert response.json()["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("path", ONLY_WHILE_SERVING)
def test_a_server_that_has_given_up_is_not_said_to_load(path: str) -> None:
    with running_front() as front:
        front.loop.call_soon_threadsafe(front.client.fail, EngineFailed("It is over."))
        until_phase(front, "failed")
        response = front.http.get(path)
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "The engine failed: It is over."


def test_a_failed_load_is_told_to_those_who_wait() -> None:
    with running_front(load=False) as front:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(front.complete()))
        asking.start()
        front.engine.send(LoadFailed("NoSuchBucket", "The bucket 'nowhere' does not exist.", "Check it."))
        asking.join()
        assert answers[0].status_code == 500
        assert "The bucket 'nowhere' does not exist." in answers[0].json()["error"]["message"]
        assert front.http.get("/health").status_code == 503
        assert front.http.get("/ready").json() == {"ready": False, "phase": "failed"}


def test_a_tokenizer_that_cannot_be_built_is_a_failed_load() -> None:
    info = msgspec.structs.replace(model_info(), tokenizer_files={"tokenizer.json": b"{}"})
    with running_front(load=False) as front:
        front.engine.send(info)
        assert "tokenizer.json" in front.complete().json()["error"]["message"]


def test_after_the_load_everything_says_so() -> None:
    with running_front() as front:
        assert front.http.get("/ready").json() == {"ready": True, "phase": "serving"}
        assert front.http.get("/health_generate").status_code == 200
        assert front.http.get("/version").json() == {"version": __version__}


def test_the_model_card_has_the_documented_shape() -> None:
    with running_front() as front:
        listed = front.http.get("/v1/models").json()
        card = listed["data"][0]
        assert isinstance(card.pop("created"), int)
        assert listed == {"object": "list", "data": [card]}
        assert card == {
            "id": "tiny",
            "object": "model",
            "owned_by": "headrace",
            "root": "tiny",
            "parent": None,
            "max_model_len": CONTEXT_LENGTH,
        }


@pytest.mark.parametrize("name", ["s3://bucket/models/qwen", "/data/models/qwen", "org/name"])
def test_a_model_whose_name_holds_slashes_is_found(name: str) -> None:
    with running_front(options=msgspec.structs.replace(OPTIONS, served_model_name=name)) as front:
        assert front.http.get(f"/v1/models/{name}").json()["id"] == name


def test_the_servers_facts_include_the_start_up_table() -> None:
    with running_front() as front:
        facts = front.http.get("/server_info").json()
        assert facts["served_model_name"] == "tiny"
        assert facts["bytes_streamed"] == READY.bytes_streamed
        assert facts["max_queued_requests"] is None
        assert facts["sampling_defaults"] == {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        rows = {row.pop("name"): row for row in facts["phases"]}
        assert rows["transfer"] == pytest.approx(
            {"start_s": 0.2, "end_s": 0.5, "seconds": 0.3, "hidden_share": None}
        )
        assert rows["warm up"]["hidden_share"] == pytest.approx(0.5)
        assert {"front: until the engine is started", "front: tokenizer"} < set(rows)
        assert facts["ready_s"] >= 0.6
        assert facts["engine_restarts"] == 0
        assert front.http.get("/get_model_info").json()["architectures"] == ["LlamaForCausalLM"]


def test_an_engine_that_makes_no_token_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "GENERATE_TIMEOUT_S", 0.05)
    with running_front(silent) as front:
        response = front.http.get("/health_generate")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_stuck"
        assert front.engine.wait_for(Abort).rid == front.engine.wait_for(Generate).rid


def test_the_log_tells_summary_table_and_readiness_in_this_order(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running_front(say("Hi")):
        pass
    lines = [record.getMessage() for record in caplog.records if record.name == "headrace"]
    assert lines[-1] == READY_LINE
    summary, transfer = (
        lines.index(READY.summary[0]),
        lines.index(next(line for line in lines if line.startswith("transfer "))),
    )
    assert summary < transfer < len(lines) - 1
    assert lines[transfer].split() == ["transfer", "0.20", "0.50", "0.30", "–"]
    assert lines[transfer + 1].split() == ["warm", "up", "0.40", "0.60", "0.20", "50", "%"]


def test_the_engines_own_lines_are_logged_with_their_level(caplog: pytest.LogCaptureFixture) -> None:
    with running_front() as front:
        front.engine.send(LogLine("warning", "One core only."), LoadProgress("serving"))
        front.complete()
    assert ("headrace.engine", logging.WARNING, "One core only.") in caplog.record_tuples
