"""Who waits, who is sent away, who goes first, and the prefix cache."""

import threading
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from front_harness import OPTIONS, Front, running_front
from scripted_engine import endless, refuse, say

from headrace.ipc.messages import FlushCache, Generate, RequestFailed, TokenOutput
from headrace.server.options import ServeOptions


def with_engine(**changes: object) -> ServeOptions:
    return msgspec.structs.replace(OPTIONS, engine=msgspec.structs.replace(OPTIONS.engine, **changes))


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = say("Hello.")
    front.engine.received.clear()


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_told_with_the_time_to_ask_again(front: Front, status: int, stream: bool) -> None:
    front.engine.script = refuse(status, "queue_full", "4 requests wait already.")
    response = front.complete(stream=stream)
    assert response.status_code == status
    assert response.headers["retry-after"] == "5"
    assert response.json()["error"]["code"] == "queue_full"


def test_an_engine_with_a_full_queue_is_healthy(front: Front) -> None:
    front.engine.script = refuse(503, "queue_full", "4 requests wait already.")
    response = front.http.get("/health_generate")
    assert (response.status_code, response.json()) == (200, {"status": "busy"})
    front.engine.script = refuse(500, "engine_error", "It failed.")
    assert front.http.get("/health_generate").status_code == 500


def test_another_refusal_names_no_time(front: Front) -> None:
    front.engine.script = refuse(400, "kv_cache_too_small", "It needs 9000 tokens.")
    assert "retry-after" not in front.complete().headers


def test_one_choice_that_finds_the_queue_full_ends_the_request(front: Front) -> None:
    def script(generate: Generate) -> Iterator[TokenOutput | RequestFailed]:
        is_last = generate.rid.endswith("-2")
        return (refuse(503, "queue_full", "Full.") if is_last else endless)(generate)

    front.engine.script = script
    assert front.complete(n=3).status_code == 503


def test_no_more_requests_wait_for_the_load_than_may_be_queued() -> None:
    with running_front(load=False, options=with_engine(max_queued_requests=1)) as front:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(front.complete(max_tokens=5))

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        while len(answers) < 2:
            asking[0].join(0.01)
        for refused in answers[:2]:
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            assert refused.json()["error"]["code"] == "queue_full"
            assert "--max-queued-requests" in refused.json()["error"]["message"]
        front.engine.load()
        for thread in asking:
            thread.join()
        assert answers[2].status_code == 200
        assert front.complete().status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_idle_engine_empties_its_prefix_cache(front: Front, method: str) -> None:
    response = front.http.request(method, "/flush_cache")
    assert response.status_code == 200
    assert response.json() == {"flushed": True, "message": "The prefix cache is empty."}
    front.engine.wait_for(FlushCache)


def test_a_cache_in_use_is_left_alone_and_that_is_a_400(front: Front) -> None:
    front.engine.script = endless
    with front.http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as answer:
        lines = answer.iter_lines()  # kept: the end of the iterator would end the request
        next(lines)
        response = front.http.post("/flush_cache")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "cache_in_use"
    assert "running" in response.json()["error"]["message"]


def test_there_is_nothing_to_flush_before_the_load_has_ended() -> None:
    with running_front(load=False) as front:
        response = front.http.post("/flush_cache")
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")


def test_flushing_asks_for_the_api_key() -> None:
    with running_front(options=msgspec.structs.replace(OPTIONS, api_key="k")) as front:
        assert front.http.post("/flush_cache").status_code == 401
        assert front.http.get("/flush_cache").status_code == 401
        assert front.engine.of(FlushCache) == []
        assert front.http.post("/flush_cache", headers={"Authorization": "Bearer k"}).status_code == 200


def test_a_priority_reaches_the_engine_where_priorities_count() -> None:
    with running_front(options=with_engine(enable_priority_scheduling=True)) as front:
        front.complete(priority=-5, n=2)
        front.chat(priority=7)
        front.complete()
        assert [generate.priority for generate in front.engine.of(Generate)] == [-5, -5, 7, 0]
        assert front.complete(priority=2**63).status_code == 400


@pytest.mark.parametrize("priority", [0, None])
def test_no_priority_is_accepted_everywhere(front: Front, priority: int | None) -> None:
    assert front.complete(priority=priority).status_code == 200


def test_a_priority_that_would_be_without_effect_is_refused_with_the_flag(front: Front) -> None:
    for response in (front.complete(priority=1), front.chat(priority=-1)):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "priority"
        assert "--enable-priority-scheduling" in response.json()["error"]["message"]
