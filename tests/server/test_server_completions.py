"""POST /v1/completions: the shape of the answer, the four forms of a prompt, and streams."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from byte_model import CONTEXT_LENGTH, EOS_ID, ids_of
from front_harness import Front, running_front
from scripted_engine import refuse, say

from headrace.ipc.messages import Abort, Generate


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = say("Hello, world.")
    front.engine.received.clear()


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def test_the_answer_has_the_documented_shape_and_nothing_more(front: Front) -> None:
    answer = front.complete(max_tokens=5, temperature=0).json()
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}


def test_sixteen_tokens_are_made_where_the_request_gives_no_number(front: Front) -> None:
    front.complete()
    assert front.engine.wait_for(Generate).sampling.max_tokens == 16


def test_the_end_of_sequence_id_counts_as_a_token_and_adds_no_text(front: Front) -> None:
    answer = front.complete(max_tokens=100).json()
    assert answer["choices"][0]["text"] == "Hello, world."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["matched_stop"] == EOS_ID
    assert answer["usage"]["completion_tokens"] == len("Hello, world.") + 1


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("one", [ids_of("one")]),
        (["one", "two"], [ids_of("one"), ids_of("two")]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_every_form_of_a_prompt_becomes_one_generation_per_prompt(
    front: Front, prompt: object, expected: list[list[int]]
) -> None:
    answer = front.complete(prompt=prompt, max_tokens=2).json()
    assert [generate.input_ids for generate in front.engine.of(Generate)] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert answer["usage"]["completion_tokens"] == 2 * len(expected)


def test_sampling_fields_reach_the_engine_as_they_are(front: Front) -> None:
    front.complete(
        temperature=0.5, top_p=0.9, top_k=7, seed=-3, stop_token_ids=[5, 6], ignore_eos=True, max_tokens=3
    )
    sampling = front.engine.wait_for(Generate).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, sampling.stop_token_ids, sampling.ignore_eos) == (-3, (5, 6), True)


def test_null_fields_count_as_not_given(front: Front) -> None:
    body = dict.fromkeys(
        ("temperature", "top_p", "stop", "seed", "max_tokens", "stream", "n", "logprobs", "user")
    )
    assert front.complete(**body).status_code == 200


def test_a_stop_string_cuts_inside_the_text_and_ends_the_generation(front: Front) -> None:
    answer = front.complete(max_tokens=100, stop=["wor", "never"]).json()
    assert answer["choices"][0]["text"] == "Hello, "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["matched_stop"] == "wor"
    assert answer["usage"]["completion_tokens"] == len("Hello, wor")
    assert front.engine.wait_for(Abort).rid == front.engine.wait_for(Generate).rid


def test_tokens_of_the_same_step_after_a_stop_string_are_not_counted(front: Front) -> None:
    front.engine.script = say("Hello, world.", ids_per_step=100)
    answer = front.complete(max_tokens=100, stop="lo").json()
    assert answer["choices"][0]["text"] == "Hel"
    assert answer["usage"]["completion_tokens"] == len("Hello")


def test_a_character_that_spans_tokens_arrives_whole(front: Front) -> None:
    front.engine.script = say("né😀")
    chunks = events(front.complete(max_tokens=100, stream=True))
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "né😀"
    assert "😀" in texts


def test_a_finished_generation_is_not_aborted(front: Front) -> None:
    front.complete(max_tokens=3)
    front.complete(max_tokens=3)
    front.engine.wait_for(Generate, 2)
    assert front.engine.of(Abort) == []


def test_a_stream_gives_the_text_piece_by_piece_and_each_end_once(front: Front) -> None:
    chunks = events(front.complete(prompt=["a", "b"], max_tokens=100, stream=True))
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "Hello, world."
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_in_a_last_chunk_without_choices_when_it_is_asked_for(front: Front) -> None:
    chunks = events(front.complete(max_tokens=4, stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}


def test_a_refusal_before_the_first_token_of_a_stream_is_a_status(front: Front) -> None:
    front.engine.script = refuse(400, "too_large_for_pool", "It needs 9000 tokens; the pool has 8192.")
    response = front.complete(stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "too_large_for_pool"


def test_a_failure_in_the_middle_of_a_stream_is_an_event_and_the_stream_ends(front: Front) -> None:
    front.engine.script = refuse(500, "kv_lost", "The engine lost it.", after="He")
    chunks = events(front.complete(max_tokens=100, stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["H", "e"]
    assert chunks[-1]["error"] == {
        "message": "The engine lost it.",
        "type": "server_error",
        "param": None,
        "code": "kv_lost",
    }


def test_one_refused_prompt_ends_the_other_prompts_of_the_request(front: Front) -> None:
    def script(generate: Generate):  # type: ignore[no-untyped-def]
        wanted = refuse(400, "no", "No.") if generate.input_ids == ids_of("bad") else say("x" * 1000)
        return wanted(generate)

    front.engine.script = script
    response = front.complete(prompt=["good", "bad"], max_tokens=1000)
    assert response.status_code == 400
    assert front.engine.wait_for(Abort).rid == front.engine.of(Generate)[0].rid


def test_a_prompt_that_leaves_one_token_of_the_context_is_answered_with_one(front: Front) -> None:
    answer = front.complete(prompt=[65] * (CONTEXT_LENGTH - 1)).json()
    assert answer["usage"]["completion_tokens"] == 1
