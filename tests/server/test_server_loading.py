"""What becomes of requests that come while the model loads."""

import asyncio
import threading

import httpx
import msgspec
import pytest
from byte_model import model_info
from front_harness import OPTIONS, Front, running_front
from scripted_engine import READY, silent

from headrace.ipc.messages import (
    Abort,
    Accepting,
    Generate,
    LoadProgress,
    SamplingParams,
    StepOutput,
    TokenOutput,
)
from headrace.server.life.front import make_client
from headrace.server.options import ServeOptions
from headrace.server.text_threads import TextThreads

ACCEPTING = Accepting(READY.max_total_tokens)


def options(**changes: object) -> ServeOptions:
    return msgspec.structs.replace(OPTIONS, **changes)


class Asking:
    """A question in a thread."""

    def __init__(self, front: Front, **body: object) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(front.complete(**body)))
        self._thread.start()

    def answer(self) -> httpx.Response:
        """The answer, once it is there."""
        self._thread.join()
        return self._answers[0]


def until_phase(front: Front, wanted: str) -> None:
    """Until the front has heard of it."""
    while front.http.get("/ready").json()["phase"] != wanted:
        pass


def until_accepting(front: Front) -> None:
    """Until requests can be sent."""
    asyncio.run_coroutine_threadsafe(front.client.state.until_accepting(), front.loop).result(60)


def until_waiting(front: Front, count: int) -> None:
    """Until so many requests wait at the front."""
    while front.client.admission.waiting_count != count:
        pass


def test_a_request_is_sent_as_soon_as_the_engine_accepts_long_before_it_is_ready() -> None:
    with running_front(load=False) as front:
        asking = Asking(front, max_tokens=5)
        front.engine.send(LoadProgress("streaming weights", 1, 1_000_000), model_info(), ACCEPTING)
        front.engine.wait_for(Generate)
        assert front.http.get("/ready").status_code == 503
        assert front.http.get("/v1/models").status_code == 503
        front.engine.send(READY)
        assert asking.answer().json()["choices"][0]["text"] == "Hello"
        assert front.http.get("/ready").status_code == 200


def test_nothing_is_sent_before_it_accepts() -> None:
    with running_front(load=False) as front:
        asking = Asking(front)
        front.engine.send(model_info(), LoadProgress("streaming weights", 1, 1_000_000))
        until_phase(front, "streaming weights")
        until_waiting(front, 1)
        assert front.engine.of(Generate) == []
        front.engine.send(ACCEPTING, READY)
        assert asking.answer().status_code == 200


def test_those_that_were_sent_are_counted_by_the_engine_and_no_more_by_the_front() -> None:
    one = options(engine=msgspec.structs.replace(OPTIONS.engine, max_queued_requests=1))
    with running_front(load=False, options=one) as front:
        front.engine.send(model_info(), ACCEPTING)
        until_accepting(front)
        asking = [Asking(front, max_tokens=3) for _ in range(3)]
        assert [each.answer().status_code for each in asking] == [200, 200, 200]


def test_a_client_that_leaves_while_its_request_waits_at_the_front_is_forgotten() -> None:
    with running_front(load=False) as front:
        with (
            httpx.Client(base_url=front.url, timeout=httpx.Timeout(60, read=0.2)) as impatient,
            pytest.raises(httpx.ReadTimeout),
        ):
            impatient.post("/v1/completions", json={"model": "tiny", "prompt": "Say"})
        until_waiting(front, 0)
        front.engine.load()
        assert front.complete().status_code == 200
        assert len(front.engine.of(Generate)) == 1


def test_a_client_that_leaves_while_its_request_waits_at_the_engine_is_forgotten_there() -> None:
    with running_front(silent, load=False) as front:
        front.engine.send(model_info(), ACCEPTING)
        with (
            httpx.Client(base_url=front.url, timeout=httpx.Timeout(60, read=0.5)) as impatient,
            pytest.raises(httpx.ReadTimeout),
        ):
            impatient.post("/v1/completions", json={"model": "tiny", "prompt": "Say"})
        assert front.engine.wait_for(Abort).rid == front.engine.wait_for(Generate).rid


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_at_the_engine_is_sent_away_when_its_time_is_up(stream: bool) -> None:
    with running_front(silent, load=False, options=options(queue_timeout_s=0.5)) as front:
        front.engine.send(model_info(), ACCEPTING)
        until_accepting(front)
        response = front.complete(stream=stream, n=2)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        error = response.json()["error"]
        assert error["code"] == "model_loading" and "--queue-timeout" in error["message"]
        sent = {generate.rid for generate in front.engine.of(Generate)}
        front.engine.wait_for(Abort, 2)
        assert len(sent) == 2 and {abort.rid for abort in front.engine.of(Abort)} == sent


def test_once_the_model_is_ready_a_request_has_all_the_time_that_it_takes() -> None:
    async def check() -> None:
        texts = TextThreads()
        client = make_client(OPTIONS, lambda _: pytest.fail("there is no model"), texts)
        client.attach(lambda _: True)
        client.receive(ACCEPTING)
        generate = Generate("r", [1], SamplingParams(max_tokens=1))
        until_s = asyncio.get_running_loop().time() + 0.05
        with client.submit([generate], load_until_s=until_s) as tokens:
            client.receive(READY)
            while asyncio.get_running_loop().time() < until_s + 0.05:
                await asyncio.sleep(0.01)
            client.receive(StepOutput((TokenOutput("r", (5,), "length"),)))
            assert [output.token_ids async for output in tokens] == [(5,)]
        texts.close()

    asyncio.run(check())


def test_without_a_queue_a_request_during_the_load_is_sent_away_at_once() -> None:
    with running_front(load=False, options=options(queue_while_loading=False)) as front:
        front.engine.send(model_info(), ACCEPTING)
        until_accepting(front)
        for response in (front.complete(), front.chat(stream=True)):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "model_loading"
            assert response.headers["retry-after"] == "5"
        assert front.http.get("/health").status_code == 200
        front.engine.send(READY)
        asyncio.run_coroutine_threadsafe(front.client.state.until_serving(), front.loop).result(60)
        assert front.complete().status_code == 200


def test_the_time_to_ask_again_is_the_one_that_the_load_will_take() -> None:
    def progress(arrived: int) -> LoadProgress:
        return LoadProgress("streaming weights", arrived, 10**12)

    with running_front(load=False, options=options(queue_while_loading=False)) as front:
        front.engine.send(progress(0), progress(1000))
        while front.http.get("/ready").json()["bytes_done"] != 1000:
            pass
        front.engine.send(progress(2000))
        while (told := front.http.get("/ready")).json()["bytes_done"] != 2000:
            pass
        assert told.json()["eta_s"] > 60
        assert told.headers["retry-after"] == "60"
        assert front.complete().headers["retry-after"] == "60"


def test_a_prompt_is_checked_and_encoded_again_where_other_files_came_meanwhile() -> None:
    with running_front(load=False) as front:
        front.engine.send(model_info())
        asyncio.run_coroutine_threadsafe(front.client.state.loaded_model(), front.loop).result(60)
        asking = Asking(front, prompt="a" * 100, max_tokens=5)
        until_waiting(front, 1)
        shorter = msgspec.structs.replace(model_info(), context_length=50)
        front.engine.send(shorter, ACCEPTING, READY)
        assert asking.answer().json()["error"]["code"] == "context_length_exceeded"
