"""The routes that change weights and memory: what is asked of the engine, what is answered, and what is refused."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from front_harness import OPTIONS, Front, running_front
from msgspec.structs import replace

from headrace.ipc.messages import (
    Occupation,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
    WeightsAnswer,
)
from headrace.server.life.fault import EngineFailed

OLD, NEW = OPTIONS.engine.model, "s3://bucket/new"
UPDATE, RELEASE, RESUME = (
    "/update_weights_from_disk",
    "/release_memory_occupation",
    "/resume_memory_occupation",
)
Asked = UpdateWeights | ReleaseMemory | ResumeMemory


def answered(
    front: Front, path: str, answer: WeightsAnswer, body: dict[str, Any] | None = None, *, count: int = 1
) -> tuple[Asked, httpx.Response]:
    """POST, and have the engine give this answer; what the engine was asked, and what came of it."""
    kind = {UPDATE: UpdateWeights, RELEASE: ReleaseMemory, RESUME: ResumeMemory}[path]
    with ThreadPoolExecutor(1) as threads:
        response: Future[httpx.Response] = threads.submit(
            lambda: front.http.post(path, json={} if body is None else body)
        )
        asked = front.engine.wait_for(kind, count)
        front.engine.send(answer)
        return asked, response.result()


def gone(*occupied: Occupation) -> WeightsAnswer:
    return WeightsAnswer(True, "Given back.", OLD, occupied)


def test_an_update_is_asked_of_the_engine_and_answered_in_sglangs_shape() -> None:
    with running_front() as front:
        asked, response = answered(
            front, UPDATE, WeightsAnswer(True, "Served.", NEW, paused_requests=3), {"model_path": NEW}
        )
        assert asked == UpdateWeights(NEW, abort_requests=False, in_place=False, flush_cache=True)
        assert response.status_code == 200
        assert response.json() == {"success": True, "message": "Served.", "num_paused_requests": 3}
        assert front.http.get("/model_info").json()["model_path"] == NEW
        assert front.client.state.model_uri == NEW


def test_every_field_of_an_update_reaches_the_engine() -> None:
    body = {
        "model_path": NEW,
        "load_format": "auto",
        "abort_all_requests": True,
        "in_place": True,
        "flush_cache": False,
        "weight_version": "step-7",
        # What asks for nothing, or for what means nothing here.
        "is_async": False,
        "keep_pause": False,
        "token_step": 0,
        "torch_empty_cache": True,
        "recapture_cuda_graph": True,
    }
    with running_front() as front:
        asked, response = answered(front, UPDATE, WeightsAnswer(True, "Served.", NEW), body)
        assert asked == UpdateWeights(NEW, abort_requests=True, in_place=True, flush_cache=False)
        assert response.status_code == 200
        assert front.http.get("/model_info").json()["weight_version"] == "step-7"


def test_an_update_that_fails_is_a_400_and_nothing_is_said_to_have_changed() -> None:
    with running_front() as front:
        _, response = answered(
            front,
            UPDATE,
            WeightsAnswer(False, "It has other shapes.", OLD),
            {"model_path": NEW, "weight_version": "step-7"},
        )
        assert response.status_code == 400
        assert response.json() == {
            "success": False,
            "message": "It has other shapes.",
            "num_paused_requests": 0,
        }
        info = front.http.get("/model_info").json()
        assert (info["model_path"], info["weight_version"]) == (OLD, "default")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model_path"),
        ({"model_path": 7}, "model_path"),
        ({"model_path": "s3://" + "x" * 5000}, "model_path"),
        ({"model_path": NEW, "load_format": "dummy"}, "load_format"),
        ({"model_path": NEW, "is_async": True}, "is_async"),
        ({"model_path": NEW, "keep_pause": True}, "keep_pause"),
        ({"model_path": NEW, "token_step": 12}, "token_step"),
        ({"model_path": NEW, "flush_cache": "no"}, "flush_cache"),
        ({"model_path": NEW, "manifest": {"a": 1}}, "manifest"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with running_front() as front:
        response = front.http.post(UPDATE, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert not front.engine.of(UpdateWeights)


def test_the_first_weights_are_called_what_the_flag_says_until_an_update_gives_another_name() -> None:
    done = WeightsAnswer(True, "Served.", NEW)
    with running_front(options=replace(OPTIONS, weight_version="v1")) as front:
        assert front.http.get("/model_info").json()["weight_version"] == "v1"
        answered(front, UPDATE, done, {"model_path": NEW})
        assert front.http.get("/model_info").json()["weight_version"] == "v1"
        answered(front, UPDATE, done, {"model_path": NEW, "weight_version": "v2"}, count=2)
        assert front.http.get("/model_info").json()["weight_version"] == "v2"


@pytest.mark.parametrize("name", ["ftp://bucket/model", "s3://", "/no/such/folder"])
def test_a_model_path_that_names_nothing_is_refused_before_the_engine_is_asked(name: str) -> None:
    with running_front() as front:
        response = front.http.post(UPDATE, json={"model_path": name})
        assert response.status_code == 400
        answer = response.json()
        assert answer["success"] is False
        assert name.partition(":")[0] in answer["message"]
        assert not front.engine.of(UpdateWeights)


def test_a_folder_may_be_named(tmp_path: Path) -> None:
    with running_front() as front:
        body = {"model_path": str(tmp_path)}
        asked, response = answered(front, UPDATE, WeightsAnswer(True, "Served.", str(tmp_path)), body)
        assert asked == UpdateWeights(str(tmp_path))
        assert response.status_code == 200


def test_a_second_change_is_refused_while_one_is_under_way() -> None:
    with running_front() as front, ThreadPoolExecutor(1) as threads:
        first = threads.submit(lambda: front.http.post(UPDATE, json={"model_path": NEW}))
        front.engine.wait_for(UpdateWeights)
        for path in (UPDATE, RELEASE, RESUME):
            second = front.http.post(path, json={"model_path": NEW})
            assert second.status_code == 409
            assert second.json()["error"]["code"] == "change_under_way"
        front.engine.send(WeightsAnswer(True, "Served.", NEW))
        assert first.result().status_code == 200
        _, third = answered(front, UPDATE, WeightsAnswer(True, "Served.", OLD), {"model_path": OLD}, count=2)
        assert third.status_code == 200


def test_nothing_is_changed_while_the_model_loads() -> None:
    with running_front(load=False) as front:
        for path in (UPDATE, RELEASE, RESUME):
            response = front.http.post(path, json={"model_path": NEW})
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "model_loading"
            assert int(response.headers["Retry-After"]) > 0


def test_a_server_that_shuts_down_changes_nothing_and_does_not_wait_for_a_change() -> None:
    with running_front() as front, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: front.http.post(UPDATE, json={"model_path": NEW}))
        front.engine.wait_for(UpdateWeights)
        front.loop.call_soon_threadsafe(front.client.drain)
        for response in (waiting.result(), front.http.post(RELEASE)):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_a_body_everything_is_given_back_and_taken_again(method: str) -> None:
    with running_front() as front, ThreadPoolExecutor(1) as threads:
        released = threads.submit(lambda: front.http.request(method, RELEASE))
        assert front.engine.wait_for(ReleaseMemory).occupations == ("weights", "kv_cache")
        front.engine.send(gone())
        assert released.result().json() == {"success": True, "message": "Given back."}
        resumed = threads.submit(lambda: front.http.request(method, RESUME))
        assert front.engine.wait_for(ResumeMemory).occupations == ("weights", "kv_cache")
        front.engine.send(WeightsAnswer(False, "The store is away.", OLD, ()))
        assert resumed.result().status_code == 400
        assert resumed.result().json() == {"success": False, "message": "The store is away."}


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        (None, ("weights", "kv_cache")),
        ([], ("weights", "kv_cache")),
        (["kv_cache"], ("kv_cache",)),
        (["kv_cache", "weights"], ("weights", "kv_cache")),
        (["cuda_graph"], ()),
    ],
)
def test_tags_name_what_is_meant(tags: list[str] | None, wanted: tuple[Occupation, ...]) -> None:
    with running_front() as front:
        asked, _ = answered(front, RELEASE, gone("weights", "kv_cache"), {"tags": tags})
        assert asked == ReleaseMemory(wanted)


def test_an_unknown_tag_is_refused() -> None:
    with running_front() as front:
        response = front.http.post(RELEASE, json={"tags": ["lora"]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tags"


def test_while_memory_is_given_back_the_server_is_alive_and_not_ready() -> None:
    with running_front() as front:
        answered(front, RELEASE, gone("weights"))
        ready = front.http.get("/ready")
        assert ready.status_code == 503
        assert ready.json() == {"ready": False, "phase": "memory released", "in_memory": ["weights"]}
        assert int(ready.headers["Retry-After"]) > 0
        assert front.http.get("/health").status_code == 200
        assert "headrace_ready 0.0" in front.http.get("/metrics").text
        assert front.http.get("/server_info").json()["in_memory"] == ["weights"]
        answered(front, RESUME, gone("weights", "kv_cache"))
        assert front.http.get("/ready").status_code == 200
        assert "headrace_ready 1.0" in front.http.get("/metrics").text


def test_the_end_of_the_engine_ends_a_change_and_the_next_one_has_everything() -> None:
    with running_front() as front, ThreadPoolExecutor(1) as threads:
        answered(front, RELEASE, gone("kv_cache"))
        waiting = threads.submit(lambda: front.http.post(RESUME))
        front.engine.wait_for(ResumeMemory)
        front.loop.call_soon_threadsafe(front.client.lose, EngineFailed("It was killed."))
        response = waiting.result()
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_failed"
        assert front.client.weights.is_complete
        assert not front.client.weights.is_changing


def test_requests_go_on_while_a_change_is_under_way() -> None:
    with running_front() as front, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: front.http.post(UPDATE, json={"model_path": NEW}))
        front.engine.wait_for(UpdateWeights)
        assert front.complete().status_code == 200
        assert front.http.get("/ready").status_code == 200
        front.engine.send(WeightsAnswer(True, "Served.", NEW))
        assert waiting.result().status_code == 200


def test_the_routes_ask_for_the_api_key() -> None:
    with running_front(options=replace(OPTIONS, api_key="secret")) as front:
        for path in (UPDATE, RELEASE, RESUME):
            assert front.http.post(path, json={"model_path": NEW}).status_code == 401
        assert not front.engine.of(UpdateWeights)
