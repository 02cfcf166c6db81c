"""The prefix cache as clients see it: what usage tells, /flush_cache, and texts that do not know of it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from transformers import PreTrainedModel

from headrace.demo.store import SeaweedStore
from tests.e2e.reading import CHAT, COMPLETIONS, Body, answer, chunks, flush, together
from tests.e2e.serving import Server, serving
from tests.tiny_models import random_ids

PAGE = 16
ANSWER = 20
FLAGS = ("--dtype", "float32", "--device", "cpu", "--chunked-prefill-size", "32", "--enable-cache-report")


@pytest.fixture(scope="module")
def server(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """Pages of the default size, 16 tokens."""
    with serving("--model-path", tiny_uri, *FLAGS, environ=seaweed.environment()) as running:
        yield running


@pytest.fixture(scope="module")
def single(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """Pages of one token: prefixes are shared to the token."""
    with serving(
        "--model-path", tiny_uri, *FLAGS, "--page-size", "1", environ=seaweed.environment()
    ) as running:
        yield running


@pytest.fixture(scope="module")
def without(tiny_uri: str, seaweed: SeaweedStore) -> Iterator[Server]:
    """No prefix cache."""
    with serving(
        "--model-path", tiny_uri, *FLAGS, "--disable-radix-cache", environ=seaweed.environment()
    ) as running:
        yield running


def complete(server: Server, prompt: object, **fields: Any) -> Body:
    body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, **fields}
    return answer(server, COMPLETIONS, body)


def cached(content: Body) -> int:
    count: int = content["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def text(content: Body) -> str:
    (only,) = content["choices"]
    found: str = only["text"]
    return found


@pytest.fixture
def prompt(tiny_reference: PreTrainedModel, request: pytest.FixtureRequest) -> list[int]:
    """A hundred tokens that no other test has."""
    return random_ids(tiny_reference, 100, seed=sum(request.node.name.encode()))


# ---- what is cached


def test_a_new_prompt_is_not_cached_and_the_same_again_is_but_for_its_last_page(
    server: Server, prompt: list[int]
) -> None:
    first, second = complete(server, prompt), complete(server, prompt)
    assert (cached(first), cached(second)) == (0, 96)
    assert text(second) == text(first)
    assert second["usage"]["prompt_tokens"] == 100


def test_a_prompt_of_whole_pages_is_computed_from_its_last_page_on(server: Server, prompt: list[int]) -> None:
    full = prompt[:96]
    first, second = complete(server, full), complete(server, full)
    assert (cached(first), cached(second)) == (0, 80)
    assert text(second) == text(first)


def test_with_pages_of_one_token_all_but_the_last_token_is_cached(single: Server, prompt: list[int]) -> None:
    first, second = complete(single, prompt), complete(single, prompt)
    assert (cached(first), cached(second)) == (0, 99)
    assert text(second) == text(first)


def test_longer_and_shorter_prompts_share_to_the_token(
    single: Server, prompt: list[int], tiny_reference: PreTrainedModel
) -> None:
    complete(single, prompt)
    longer = complete(single, [*prompt, *random_ids(tiny_reference, 10, seed=1)])
    shorter = complete(single, prompt[:57])
    assert (cached(longer), cached(shorter)) == (100, 56)


def test_a_prompt_of_one_token_is_never_cached(single: Server) -> None:
    assert [cached(complete(single, [9])) for _ in range(2)] == [0, 0]


def test_prompts_share_what_they_begin_with(
    server: Server, prompt: list[int], tiny_reference: PreTrainedModel
) -> None:
    complete(server, prompt)
    fork = prompt[:50] + random_ids(tiny_reference, 50, seed=2)
    assert cached(complete(server, fork)) == 48
    assert cached(complete(server, fork)) == 96


def test_usage_says_nothing_of_the_cache_unless_the_server_was_told_to(
    exact: Server, prompt: list[int]
) -> None:
    assert "prompt_tokens_details" not in complete(exact, prompt)["usage"]


def test_a_stream_tells_it_with_its_usage(server: Server, prompt: list[int]) -> None:
    complete(server, prompt)
    body = {
        "prompt": prompt,
        "max_tokens": 3,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    last = list(chunks(server, COMPLETIONS, body))[-1]
    assert last["choices"] == []
    assert cached(last) == 96


def test_equal_prompts_of_one_request_are_computed_once(server: Server, prompt: list[int]) -> None:
    content = complete(server, [prompt] * 4)
    assert cached(content) == 3 * 96
    assert len({item["text"] for item in content["choices"]}) == 1
    assert content["usage"]["prompt_tokens"] == 400


def test_choices_share_their_prompt(server: Server, prompt: list[int]) -> None:
    fields = {"temperature": 1.0, "top_k": 4, "seed": 8, "n": 3}
    first = complete(server, prompt, **fields)
    assert cached(first) == 0
    again = complete(server, prompt, **fields)
    assert cached(again) == 96
    assert [item["text"] for item in again["choices"]] == [item["text"] for item in first["choices"]]
    assert again["usage"]["prompt_tokens"] == 100
    assert again["usage"]["completion_tokens"] == 3 * ANSWER


def test_a_prompt_whose_logprobs_are_told_uses_none_and_leaves_it_for_others(
    server: Server, prompt: list[int]
) -> None:
    complete(server, prompt)
    assert cached(complete(server, prompt, echo=True, logprobs=1)) == 0
    assert cached(complete(server, prompt)) == 96


# ---- conversations


def test_the_next_turn_finds_the_last_one_with_its_answer(smollm2: Server) -> None:
    flush(smollm2)
    messages = [{"role": "user", "content": "Name three large rivers of Europe."}]
    body = {"temperature": 0, "max_tokens": 40}
    first = answer(smollm2, CHAT, {**body, "messages": messages})
    message = first["choices"][0]["message"]
    messages += [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": "Which is the longest?"},
    ]
    second = answer(smollm2, CHAT, {**body, "messages": messages})
    usage = first["usage"]
    # The last token of an answer is never computed, and a page must be full.
    computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert cached(second) == computed // PAGE * PAGE
    assert cached(second) > usage["prompt_tokens"]
    flush(smollm2)
    anew = answer(smollm2, CHAT, {**body, "messages": messages})
    assert cached(anew) == 0
    assert anew["choices"][0]["message"] == second["choices"][0]["message"]


# ---- flushing


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_flush_empties_the_cache(method: str, server: Server, prompt: list[int]) -> None:
    before = complete(server, prompt)
    assert cached(complete(server, prompt)) == 96
    response = server.get("/flush_cache") if method == "GET" else server.post("/flush_cache", {})
    assert response.status_code == 200
    after = complete(server, prompt)
    assert cached(after) == 0
    assert text(after) == text(before)


def test_a_flush_is_refused_while_a_request_runs_and_touches_nothing(
    server: Server, prompt: list[int]
) -> None:
    complete(server, prompt)
    endless = {"prompt": [4], "max_tokens": 20_000, "temperature": 0, "ignore_eos": True}
    running = chunks(server, COMPLETIONS, endless)
    next(running)
    refused = server.post("/flush_cache", {})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "cache_in_use"
    assert cached(complete(server, prompt)) == 96
    running.close()


# ---- without


def test_without_the_cache_nothing_is_ever_cached_and_a_flush_is_no_error(
    without: Server, prompt: list[int]
) -> None:
    assert [cached(complete(without, prompt)) for _ in range(2)] == [0, 0]
    flush(without)


def test_texts_are_the_same_with_and_without_the_cache(
    server: Server, without: Server, tiny_reference: PreTrainedModel
) -> None:
    trunk = random_ids(tiny_reference, 90, seed=77)
    prompts = [
        trunk[:cut] + random_ids(tiny_reference, extra, seed=cut)
        for cut, extra in ((90, 1), (16, 40), (33, 0), (90, 30), (64, 0), (90, 1), (32, 5), (0, 20))
    ]
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "top_k": 4, "seed": 3},
        {"repetition_penalty": 1.3},
        {"logprobs": 2},
    ]
    calls = [
        partial(complete, server, prompt, **options[number % 4]) for number, prompt in enumerate(prompts)
    ]
    alone = [text(complete(without, prompt, **options[number % 4])) for number, prompt in enumerate(prompts)]
    one_by_one = [call() for call in calls]
    assert sum(cached(content) > 0 for content in one_by_one) >= 5
    assert [text(content) for content in one_by_one] == alone
    flush(server)
    assert [text(content) for content in together(calls)] == alone
