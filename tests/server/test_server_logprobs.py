"""Logprobs and echoes in answers and streams, in both routes' shapes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from byte_model import CONTEXT_LENGTH, EOS_ID, ids_of
from front_harness import Front, running_front
from scripted_engine import say

from headrace.ipc.messages import Generate

TEXT = "Né 😀."


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with running_front() as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(front: Front) -> None:
    front.engine.script = say(TEXT)
    front.engine.received.clear()


def streamed(front: Front, ask: str, **body: object) -> list[Any]:
    """The choices of a stream's chunks."""
    response = front.complete(stream=True, **body) if ask == "complete" else front.chat(stream=True, **body)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", response.text
    return [json.loads(line)["choices"][0] for line in lines[:-1]]


def joined(choices: list[Any]) -> dict[str, list[Any]]:
    """The lists of completion chunks, one after the other."""
    told = [choice["logprobs"] for choice in choices]
    return {name: [item for lists in told for item in lists[name]] for name in told[0]}


def expected(text: str, start: int = 0) -> dict[str, list[Any]]:
    """What the scripted engine's answer must look like with `logprobs` 0."""
    ids = ids_of(text)
    places = [place for place, character in enumerate(text) for _ in character.encode()]
    tokens = [
        character if len(character.encode()) == 1 else f"bytes:\\x{byte:02x}"
        for character in text
        for byte in character.encode()
    ]
    logprobs = [-token_id / 1000 for token_id in ids]
    return {
        "text_offset": [start + place for place in places],
        "token_logprobs": logprobs,
        "tokens": tokens,
        "top_logprobs": [{token: logprob} for token, logprob in zip(tokens, logprobs, strict=True)],
    }


def test_a_completion_lists_every_token_with_its_place_and_logprob(front: Front) -> None:
    choice = front.complete(logprobs=0, max_tokens=len(ids_of(TEXT))).json()["choices"][0]
    assert choice["text"] == TEXT
    assert list(choice["logprobs"]) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert choice["logprobs"] == expected(TEXT)
    assert front.engine.wait_for(Generate).sampling.logprobs == 0


def test_a_completions_end_of_sequence_id_is_listed_as_openai_lists_it(front: Front) -> None:
    told = front.complete(logprobs=0, max_tokens=100).json()["choices"][0]["logprobs"]
    assert told["tokens"][-1] == "<|im_end|>"
    assert told["text_offset"][-1] == len(TEXT)
    assert told["token_logprobs"][-1] == -EOS_ID / 1000


def test_the_likeliest_tokens_are_told_beside_each(front: Front) -> None:
    front.engine.script = say("c")
    told = front.complete(logprobs=3, max_tokens=1).json()["choices"][0]["logprobs"]
    c = ids_of("c")[0]
    assert told["top_logprobs"] == [{"c": -c / 1000, "b": -c / 1000 - 1, "a": -c / 1000 - 2}]


@pytest.mark.parametrize(("asked", "wanted"), [(True, 1), (False, None), (None, None), (0, 0), (20, 20)])
def test_a_boolean_asks_for_one_or_none(front: Front, asked: object, wanted: int | None) -> None:
    choice = front.complete(logprobs=asked, max_tokens=1).json()["choices"][0]
    assert front.engine.wait_for(Generate).sampling.logprobs == wanted
    assert (choice["logprobs"] is None) == (wanted is None)


@pytest.mark.parametrize("per_step", [1, 3, 100])
@pytest.mark.parametrize("stop", [None, ["😀"], ["é "], [". and more"]])
def test_a_stream_tells_the_same_tokens_as_a_whole_answer(front: Front, per_step: int, stop: object) -> None:
    body = {"logprobs": 2, "max_tokens": 100, "stop": stop}
    whole = front.complete(**body).json()["choices"][0]
    front.engine.script = say(TEXT, ids_per_step=per_step)
    choices = streamed(front, "complete", **body)
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert joined(choices) == whole["logprobs"]


def test_each_chunk_of_a_stream_tells_the_tokens_of_its_own_text(front: Front) -> None:
    length = 0
    for choice in streamed(front, "complete", logprobs=0, max_tokens=len(ids_of(TEXT))):
        assert all(
            length <= offset < length + len(choice["text"]) for offset in choice["logprobs"]["text_offset"]
        )
        length += len(choice["text"])


def test_tokens_after_a_stop_strings_beginning_are_not_told(front: Front) -> None:
    choice = front.complete(logprobs=0, max_tokens=100, stop="😀").json()["choices"][0]
    assert choice["text"] == "Né "
    assert choice["logprobs"] == expected("Né ")


def test_a_chat_tells_objects_with_bytes(front: Front) -> None:
    choice = front.chat(logprobs=True, top_logprobs=2).json()["choices"][0]
    assert list(choice["logprobs"]) == ["content", "refusal"]
    content = choice["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == TEXT
    n = ids_of("N")[0]
    assert content[0] == {
        "token": "N",
        "bytes": [78],
        "logprob": -n / 1000,
        "top_logprobs": [
            {"token": "N", "bytes": [78], "logprob": -n / 1000},
            {"token": "M", "bytes": [77], "logprob": -n / 1000 - 1},
        ],
    }


def test_a_chat_without_top_logprobs_tells_the_chosen_tokens_only(front: Front) -> None:
    content = front.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert front.engine.wait_for(Generate).sampling.logprobs == 0
    assert all(token["top_logprobs"] == [] for token in content)


def test_a_chat_that_does_not_ask_is_told_nothing(front: Front) -> None:
    assert front.chat(logprobs=False, top_logprobs=0).json()["choices"][0]["logprobs"] is None
    assert front.engine.wait_for(Generate).sampling.logprobs is None


@pytest.mark.parametrize("per_step", [1, 3, 100])
@pytest.mark.parametrize("stop", [None, ["😀"], [". and more"]])
def test_a_streamed_chat_tells_the_same_tokens_as_a_whole_one(
    front: Front, per_step: int, stop: object
) -> None:
    body = {"logprobs": True, "top_logprobs": 1, "stop": stop}
    whole = front.chat(**body).json()["choices"][0]
    front.engine.script = say(TEXT, ids_per_step=per_step)
    choices = streamed(front, "chat", **body)
    told = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"]]
    assert [token for content in told for token in content] == whole["logprobs"]["content"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]


def test_an_echo_begins_the_text(front: Front) -> None:
    answer = front.complete(prompt="Größe: ", echo=True, max_tokens=1).json()
    assert answer["choices"][0]["text"] == "Größe: N"
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 10, "completion_tokens": 1}
    assert front.engine.wait_for(Generate).sampling.prompt_logprobs is None


def test_an_echo_with_logprobs_tells_the_prompts_tokens_too(front: Front) -> None:
    front.engine.script = say("ab")
    choice = front.complete(prompt="xéy", echo=True, logprobs=0, max_tokens=2).json()["choices"][0]
    prompt, answer = expected("xéy"), expected("ab", start=3)
    assert choice["text"] == "xéyab"
    assert choice["logprobs"] == {
        "text_offset": prompt["text_offset"] + answer["text_offset"],
        "tokens": prompt["tokens"] + answer["tokens"],
        "token_logprobs": [None, *prompt["token_logprobs"][1:], *answer["token_logprobs"]],
        "top_logprobs": [None, *prompt["top_logprobs"][1:], *answer["top_logprobs"]],
    }


def test_token_ids_are_echoed_as_their_text(front: Front) -> None:
    choice = front.complete(prompt=[EOS_ID, *ids_of("hé")], echo=True, logprobs=1, max_tokens=1).json()[
        "choices"
    ][0]
    assert choice["text"] == "héN"
    assert choice["logprobs"]["tokens"][:2] == ["<|im_end|>", "h"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_an_echo_is_a_streams_first_chunk(front: Front, logprobs: int | None) -> None:
    body = {"prompt": "Say", "echo": True, "logprobs": logprobs, "max_tokens": 100}
    whole = front.complete(**body).json()["choices"][0]
    choices = streamed(front, "complete", **body)
    assert choices[0]["text"] == "Say"
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    if logprobs is not None:
        assert choices[0]["logprobs"]["tokens"] == ["S", "a", "y"]
        assert joined(choices) == whole["logprobs"]


def test_the_prompt_may_be_scored_without_an_answer(front: Front) -> None:
    answer = front.complete(prompt="abc", echo=True, logprobs=1, max_tokens=0).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *expected("abc")["token_logprobs"][1:]]
    assert answer["usage"]["completion_tokens"] == 0
    sampling = front.engine.wait_for(Generate).sampling
    assert (sampling.max_tokens, sampling.prompt_logprobs) == (0, 1)


def test_a_prompt_as_long_as_the_context_may_be_scored(front: Front) -> None:
    prompt = [65] * CONTEXT_LENGTH
    assert front.complete(prompt=prompt, echo=True, logprobs=0, max_tokens=0).status_code == 200
    assert front.complete(prompt=prompt, echo=True, logprobs=0, max_tokens=1).status_code == 400


def test_an_answer_of_no_tokens_without_logprobs_is_the_prompt(front: Front) -> None:
    choice = front.complete(prompt="abc", echo=True, max_tokens=0).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]) == ("abc", None)
    assert front.engine.wait_for(Generate).sampling.prompt_logprobs == 0


def test_a_stop_string_is_looked_for_in_the_answer_only(front: Front) -> None:
    choice = front.complete(prompt="Né", echo=True, stop="Né", max_tokens=100).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Né", "stop")
