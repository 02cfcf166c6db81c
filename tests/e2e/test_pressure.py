"""Too little room: requests are retracted, queued, refused or left by their clients, and the others notice nothing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from transformers import PreTrainedModel

from headrace.demo.store import SeaweedStore
from tests.e2e.reading import COMPLETIONS, Body, answer, chunks, flush, requests_now, together
from tests.e2e.serving import Server, serving, until
from tests.e2e.test_concurrency import send_and_keep
from tests.tiny_models import random_ids

SMALL_POOL = 512
QUEUE_POOL = 8192
QUEUED = 3
# Rounding differs with what is computed together, and may shift a draw among tokens as unlikely as rounding is
# large: draws that are compared leave those out.
FEW = 4


@pytest.fixture(scope="module")
def small(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """A pool of 32 pages for up to sixteen requests."""
    flags = ["--dtype", "float32", "--device", "cpu", "--max-total-tokens", str(SMALL_POOL)]
    flags += ["--max-running-requests", "16", "--chunked-prefill-size", "64"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as running:
        yield running


@pytest.fixture(scope="module")
def narrow(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """One request runs, three may wait, the higher priority first; prompts come 16 tokens at a time."""
    flags = ["--dtype", "float32", "--device", "cpu", "--max-total-tokens", str(QUEUE_POOL)]
    flags += ["--max-running-requests", "1", "--max-queued-requests", str(QUEUED)]
    flags += ["--enable-priority-scheduling", "--chunked-prefill-size", "16"]
    with serving("--model-path", tiny_uri, *flags, environ=seaweed.environment()) as running:
        yield running


def body(prompt: list[int], max_tokens: int, **fields: Any) -> Body:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}


def text(server: Server, asked: Body) -> str:
    found: str = answer(server, COMPLETIONS, asked)["choices"][0]["text"]
    return found


def assert_the_whole_pool_is_free(server: Server, tokens: int) -> None:
    """Nothing runs or waits, and a request that needs every page is answered to its end."""
    flush(server)
    told = answer(server, COMPLETIONS, body([6] * (tokens - 8), 8))
    assert told["usage"]["total_tokens"] == tokens


def until_requests(server: Server, count: int) -> None:
    until(lambda: requests_now(server) == count, f"an engine with {count} requests")


# ---- too few pages


def test_requests_that_outgrow_the_pool_together_get_the_texts_they_get_alone(
    small: Server, tiny_reference: PreTrainedModel
) -> None:
    # Prompts of three pages each are admitted until the 32 pages are full; each of the nine grows to 12 pages.
    prompts = [random_ids(tiny_reference, 40, seed=number) for number in range(9)]
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "top_k": FEW, "seed": 9},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    ]
    asked = [body(prompt, 150, **options[number % 3]) for number, prompt in enumerate(prompts)]
    alone = [text(small, each) for each in asked]
    flush(small)
    assert together([partial(text, small, each) for each in asked]) == alone
    assert_the_whole_pool_is_free(small, SMALL_POOL)


def test_logprobs_outlive_a_retraction(small: Server, tiny_reference: PreTrainedModel) -> None:
    prompts = [random_ids(tiny_reference, 40, seed=100 + number) for number in range(6)]
    asked = [body(prompt, 120, logprobs=1, echo=True) for prompt in prompts]
    alone = [answer(small, COMPLETIONS, each)["choices"][0] for each in asked]
    flush(small)
    contents = together([partial(answer, small, COMPLETIONS, each) for each in asked])
    for content, expected in zip(contents, alone, strict=True):
        told = content["choices"][0]
        assert told["text"] == expected["text"]
        assert told["logprobs"]["tokens"] == expected["logprobs"]["tokens"]
        assert told["logprobs"]["token_logprobs"][1:] == pytest.approx(
            expected["logprobs"]["token_logprobs"][1:], abs=1e-4
        )
    assert_the_whole_pool_is_free(small, SMALL_POOL)


def test_a_stream_goes_on_over_a_retraction_without_a_repeated_or_a_lost_token(
    small: Server, tiny_reference: PreTrainedModel
) -> None:
    prompts = [random_ids(tiny_reference, 30, seed=200 + number) for number in range(6)]

    def streamed(prompt: list[int]) -> str:
        parts = chunks(small, COMPLETIONS, body(prompt, 140))
        return "".join(part["choices"][0]["text"] for part in parts)

    alone = [text(small, body(prompt, 140)) for prompt in prompts]
    flush(small)
    assert together([partial(streamed, prompt) for prompt in prompts]) == alone


def test_choices_that_do_not_fit_together_are_all_answered(small: Server) -> None:
    asked = body([8] * 20, 120, n=8, temperature=1.0, top_k=FEW, seed=1)
    told = answer(small, COMPLETIONS, asked)
    assert told["usage"]["completion_tokens"] == 8 * 120
    assert told["choices"][0]["text"] == text(small, {**asked, "n": 1})
    assert len({item["text"] for item in told["choices"]}) == 8


def test_a_request_larger_than_the_pool_is_refused_with_the_numbers(small: Server) -> None:
    response = small.post(COMPLETIONS, body([8] * 300, 300))
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "600" in message
    assert str(SMALL_POOL) in message
    assert_the_whole_pool_is_free(small, SMALL_POOL)


# ---- a full queue


def endless(server: Server, **fields: Any) -> Any:
    """A stream that runs until it is closed, and has begun."""
    running = chunks(server, COMPLETIONS, body([4], QUEUE_POOL - 1, **fields))
    next(running)
    return running


def test_more_requests_than_may_wait_are_told_to_come_back(narrow: Server) -> None:
    flush(narrow)
    running = endless(narrow)
    with ThreadPoolExecutor(QUEUED + 4) as threads:
        asked = [
            threads.submit(narrow.post, COMPLETIONS, body([number], 4)) for number in range(5, QUEUED + 9)
        ]
        until(lambda: sum(future.done() for future in asked) >= 4, "four refusals")
        refused = [future.result() for future in asked if future.done()]
        until_requests(narrow, 1 + QUEUED)
        running.close()
        responses = [future.result() for future in asked]
    assert len(refused) == 4
    for response in refused:
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        error = response.json()["error"]
        assert error["code"] == "queue_full"
        assert "--max-queued-requests" in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
    assert sum(response.status_code == 200 for response in responses) == QUEUED
    assert_the_whole_pool_is_free(narrow, QUEUE_POOL)


def test_a_stream_that_finds_the_queue_full_is_told_so_by_its_status(narrow: Server) -> None:
    flush(narrow)
    running = endless(narrow)
    with ThreadPoolExecutor(QUEUED) as threads:
        waiting = [threads.submit(narrow.post, COMPLETIONS, body([9], 2)) for _ in range(QUEUED)]
        until_requests(narrow, 1 + QUEUED)
        response = narrow.post(COMPLETIONS, body([9], 2, stream=True))
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "queue_full"
        running.close()
        assert [future.result().status_code for future in waiting] == [200] * QUEUED


def test_a_request_of_more_choices_than_may_wait_leaves_none_of_them(narrow: Server) -> None:
    flush(narrow)
    running = endless(narrow)
    response = narrow.post(COMPLETIONS, body([9], 50, n=QUEUED + 1))
    assert response.status_code == 503
    until_requests(narrow, 1)
    running.close()
    assert_the_whole_pool_is_free(narrow, QUEUE_POOL)


def test_more_choices_than_may_wait_are_answered_where_one_of_them_can_run(narrow: Server) -> None:
    flush(narrow)
    told = answer(narrow, COMPLETIONS, body([9], 5, n=1 + QUEUED))
    assert len(told["choices"]) == 1 + QUEUED
    assert narrow.post(COMPLETIONS, body([9], 5, n=2 + QUEUED)).status_code == 503
    assert_the_whole_pool_is_free(narrow, QUEUE_POOL)


def test_who_waits_is_served_by_priority_then_by_arrival(narrow: Server) -> None:
    flush(narrow)
    running = endless(narrow)
    served: list[str] = []

    def ask(name: str, priority: int | None) -> None:
        text(narrow, body([11], 40, priority=priority))
        served.append(name)

    with ThreadPoolExecutor(QUEUED) as threads:
        for waiting, (name, priority) in enumerate([("none", None), ("high", 5), ("low", 1)]):
            threads.submit(ask, name, priority)
            until_requests(narrow, 2 + waiting)
        running.close()
    assert served == ["high", "low", "none"]


def test_equal_priorities_are_served_as_they_came(narrow: Server) -> None:
    flush(narrow)
    running = endless(narrow)
    served: list[int] = []

    def ask(number: int) -> None:
        text(narrow, body([11], 40, priority=2))
        served.append(number)

    with ThreadPoolExecutor(QUEUED) as threads:
        for number in range(QUEUED):
            threads.submit(ask, number)
            until_requests(narrow, 2 + number)
        running.close()
    assert served == [0, 1, 2]


# ---- clients that leave


def test_a_client_that_leaves_the_queue_leaves_nothing(narrow: Server) -> None:
    flush(narrow)
    running = endless(narrow)
    waiting = [send_and_keep(narrow, body([12] * 500, 500, stream=stream)) for stream in (False, True)]
    until_requests(narrow, 3)
    for connection in waiting:
        connection.close()
    until_requests(narrow, 1)
    running.close()
    assert_the_whole_pool_is_free(narrow, QUEUE_POOL)


def test_a_client_that_leaves_while_its_prompt_is_computed_leaves_nothing(narrow: Server) -> None:
    flush(narrow)
    # Half a thousand steps of 16 tokens: it is far from its first token when it goes.
    connection = send_and_keep(narrow, body([13] * (QUEUE_POOL - 8), 8, stream=True))
    until_requests(narrow, 1)
    connection.close()
    until_requests(narrow, 0)
    assert_the_whole_pool_is_free(narrow, QUEUE_POOL)


@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_amid_its_answer_leaves_nothing(n: int, narrow: Server) -> None:
    flush(narrow)
    endless(narrow, n=n).close()
    assert_the_whole_pool_is_free(narrow, QUEUE_POOL)


def test_the_text_of_who_stays_is_its_own_though_others_come_and_go(
    narrow: Server, tiny_reference: PreTrainedModel
) -> None:
    flush(narrow)
    prompt = random_ids(tiny_reference, 50, seed=31)
    alone = text(narrow, body(prompt, 30))
    running = endless(narrow)
    leaving = [send_and_keep(narrow, body([14] * 50, 500)) for _ in range(2)]
    until_requests(narrow, 3)
    with ThreadPoolExecutor(1) as threads:
        staying = threads.submit(text, narrow, body(prompt, 30))
        until_requests(narrow, 4)
        for connection in leaving:
            connection.close()
        until_requests(narrow, 2)
        running.close()
        assert staying.result() == alone
