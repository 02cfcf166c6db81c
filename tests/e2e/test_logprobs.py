"""Logprobs over HTTP: transformers' log-softmax, in OpenAI's shapes, of the tokens that the text is made of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.e2e.reading import (
    CHAT,
    COMPLETIONS,
    Body,
    answer,
    choice,
    chunks,
    ids_of,
    reference_logprobs,
    token_bytes,
    token_name,
)
from tests.e2e.serving import Server
from tests.models.harness import theirs_greedy
from tests.tiny_models import random_ids, tiny_tokenizer

NEAR = 1e-4
ANSWER = 24
TEXT = "The rain in Spain stays mainly in the plain, and the miller's wheel turns."
TOKENIZER = tiny_tokenizer()
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def prompt(tiny_reference: PreTrainedModel) -> list[int]:
    """Longer than a chunk of the server's prefill."""
    return random_ids(tiny_reference, 75, seed=3)


def greedy(server: Server, prompt: object, **fields: Any) -> Body:
    return choice(server, prompt=prompt, ignore_eos=True, **{"max_tokens": ANSWER, **fields})


def assert_logprobs(
    told: Body, ids: list[int], start: int, table: torch.Tensor, tokenizer: Tokenizer
) -> None:
    """`told` names ids[start:], with the logprobs that row i of `table` gives the token i + 1."""
    assert told["tokens"] == [token_name(tokenizer, token_id) for token_id in ids[start:]]
    for place, logprob in zip(range(start, len(ids)), told["token_logprobs"], strict=True):
        if place == 0:
            assert logprob is None
        else:
            assert logprob == pytest.approx(float(table[place - 1, ids[place]]), abs=NEAR)


def assert_top(
    told: Body, ids: list[int], start: int, table: torch.Tensor, count: int, tokenizer: Tokenizer
) -> None:
    """`told` has the `count` likeliest tokens at each of ids[start:], and the one that stands there."""
    for place, top in zip(range(start, len(ids)), told["top_logprobs"], strict=True):
        if place == 0:
            assert top is None
            continue
        best = table[place - 1].topk(count).indices.tolist()
        expected = {token_name(tokenizer, i): float(table[place - 1, i]) for i in {*best, ids[place]}}
        assert top == pytest.approx(expected, abs=NEAR)


def assert_offsets(told: Body, text: str) -> None:
    """Each token of whole characters stands in the text where it is said to begin."""
    assert told["text_offset"] == sorted(told["text_offset"])
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert 0 <= offset <= len(text)
        if not token.startswith("bytes:"):
            assert text.startswith(token, offset), (token, offset)


# ---- completions


@pytest.mark.parametrize("count", [0, 5])
def test_a_completion_tells_the_logprobs_of_its_tokens_and_of_the_likeliest(
    count: int, exact: Server, tiny_reference: PreTrainedModel, prompt: list[int]
) -> None:
    told = greedy(exact, prompt, logprobs=count, skip_special_tokens=False)
    ids = prompt + theirs_greedy(tiny_reference, prompt, ANSWER)
    table = reference_logprobs(tiny_reference, ids)
    assert_logprobs(told["logprobs"], ids, len(prompt), table, TOKENIZER)
    assert_top(told["logprobs"], ids, len(prompt), table, count, TOKENIZER)
    assert_offsets(told["logprobs"], told["text"])


def test_without_the_field_no_logprobs_are_told(exact: Server, prompt: list[int]) -> None:
    assert greedy(exact, prompt)["logprobs"] is None


def test_a_stream_tells_the_same_logprobs_each_with_its_text(exact: Server, prompt: list[int]) -> None:
    fields = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "logprobs": 3}
    whole = greedy(exact, prompt, logprobs=3)
    joined: dict[str, list[Any]] = {name: [] for name in LISTS}
    text = ""
    for chunk in chunks(exact, COMPLETIONS, fields):
        (piece,) = chunk["choices"]
        offsets = piece["logprobs"]["text_offset"]
        # The last chunk may hold tokens that add nothing to the text.
        assert piece["finish_reason"] or all(
            len(text) <= offset < len(text) + len(piece["text"]) for offset in offsets
        )
        text += piece["text"]
        for name in LISTS:
            joined[name] += piece["logprobs"][name]
    assert text == whole["text"]
    assert joined == whole["logprobs"]


def test_penalties_and_temperature_leave_the_logprobs_as_the_model_has_them(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int]
) -> None:
    told = choice(
        exact,
        prompt=prompt,
        max_tokens=ANSWER,
        ignore_eos=True,
        logprobs=2,
        temperature=1.7,
        seed=5,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        logit_bias={"17": 4.0},
    )["logprobs"]
    ids = prompt + ids_of(TOKENIZER, told["tokens"])
    assert ids[len(prompt) :] != theirs_greedy(tiny_reference, prompt, ANSWER)
    table = reference_logprobs(tiny_reference, ids)
    assert_logprobs(told, ids, len(prompt), table, TOKENIZER)
    assert_top(told, ids, len(prompt), table, 2, TOKENIZER)


# ---- the prompt's


def test_an_echo_tells_the_prompts_logprobs_before_the_answers(
    exact: Server, tiny_reference: PreTrainedModel
) -> None:
    prompt = TOKENIZER.encode(TEXT).ids
    assert len(prompt) > 32  # several chunks
    told = greedy(exact, TEXT, logprobs=4, echo=True, skip_special_tokens=False)
    ids = prompt + theirs_greedy(tiny_reference, prompt, ANSWER)
    table = reference_logprobs(tiny_reference, ids)
    assert told["text"].startswith(TEXT)
    assert_logprobs(told["logprobs"], ids, 0, table, TOKENIZER)
    assert_top(told["logprobs"], ids, 0, table, 4, TOKENIZER)
    assert_offsets(told["logprobs"], told["text"])


def test_a_prompt_that_is_cached_is_scored_all_the_same(exact: Server) -> None:
    first = greedy(exact, TEXT, logprobs=1, echo=True)
    greedy(exact, TEXT)
    assert greedy(exact, TEXT, logprobs=1, echo=True) == first


def test_no_answer_at_all_scores_the_prompt(exact: Server, tiny_reference: PreTrainedModel) -> None:
    prompt = TOKENIZER.encode(TEXT).ids
    body = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 2, "temperature": 0}
    content = answer(exact, COMPLETIONS, body)
    (told,) = content["choices"]
    assert told["text"] == TEXT
    assert told["finish_reason"] == "length"
    assert content["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 0,
        "total_tokens": len(prompt),
    }
    table = reference_logprobs(tiny_reference, prompt)
    assert_logprobs(told["logprobs"], prompt, 0, table, TOKENIZER)
    assert_top(told["logprobs"], prompt, 0, table, 2, TOKENIZER)
    assert_offsets(told["logprobs"], TEXT)


def test_the_offsets_of_an_echo_cut_the_text_into_its_tokens(exact: Server) -> None:
    told = choice(exact, prompt=TEXT, max_tokens=0, echo=True, logprobs=0)["logprobs"]
    ends = [*told["text_offset"][1:], len(TEXT)]
    cut = [TEXT[start:end] for start, end in zip(told["text_offset"], ends, strict=True)]
    assert cut == told["tokens"] == [token_name(TOKENIZER, i) for i in TOKENIZER.encode(TEXT).ids]


def test_many_prompts_are_scored_side_by_side(exact: Server, tiny_reference: PreTrainedModel) -> None:
    prompts = [random_ids(tiny_reference, count, seed=count) for count in (1, 2, 33, 70)]
    body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}
    choices = answer(exact, COMPLETIONS, body)["choices"]
    for ids, told in zip(prompts, choices, strict=True):
        assert_logprobs(told["logprobs"], ids, 0, reference_logprobs(tiny_reference, ids), TOKENIZER)


# ---- stops


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_cuts_text_and_logprobs_alike(streamed: bool, exact: Server, prompt: list[int]) -> None:
    whole = greedy(exact, prompt, logprobs=0)
    offsets = whole["logprobs"]["text_offset"]
    stop = whole["text"][offsets[10] : offsets[14]]
    cut = whole["text"].index(stop)
    assert cut > 0
    if streamed:
        body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        parts = [
            part["choices"][0] for part in chunks(exact, COMPLETIONS, {**body, "stop": stop, "logprobs": 0})
        ]
        text = "".join(part["text"] for part in parts)
        told = {name: [item for part in parts for item in part["logprobs"][name]] for name in LISTS}
        end = parts[-1]
    else:
        end = greedy(exact, prompt, logprobs=0, stop=[stop])
        text, told = end["text"], end["logprobs"]
    assert (end["finish_reason"], end["matched_stop"]) == ("stop", stop)
    assert text == whole["text"][:cut]
    kept = sum(offset < cut for offset in offsets)
    assert 0 < kept < ANSWER
    assert told == {name: whole["logprobs"][name][:kept] for name in LISTS}


def test_the_id_that_ends_an_answer_has_a_logprob_and_no_text(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int]
) -> None:
    ids = theirs_greedy(tiny_reference, prompt, ANSWER)
    end = ids[9]
    count = ids.index(end) + 1
    told = greedy(exact, prompt, logprobs=0, stop_token_ids=[end])
    assert (told["finish_reason"], told["matched_stop"]) == ("stop", end)
    table = reference_logprobs(tiny_reference, prompt + ids)
    assert_logprobs(told["logprobs"], prompt + ids[:count], len(prompt), table, TOKENIZER)


# ---- several choices


def test_the_first_of_three_choices_is_what_one_choice_gets(exact: Server, prompt: list[int]) -> None:
    body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 1.0, "top_k": 8, "seed": 11}
    one = answer(exact, COMPLETIONS, body)["choices"]
    three = answer(exact, COMPLETIONS, {**body, "n": 3})["choices"]
    assert [item["index"] for item in three] == [0, 1, 2]
    assert three[0]["text"] == one[0]["text"]
    assert len({item["text"] for item in three}) == 3


def test_the_best_of_five_have_the_highest_mean_logprob(exact: Server, prompt: list[int]) -> None:
    body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 1.0, "top_k": 8, "seed": 11, "logprobs": 0}
    five = answer(exact, COMPLETIONS, {**body, "n": 5})["choices"]

    def mean(told: Body) -> float:
        logprobs = told["logprobs"]["token_logprobs"]
        return float(sum(logprobs) / len(logprobs))

    best = answer(exact, COMPLETIONS, {**body, "n": 2, "best_of": 5})
    expected = sorted(five, key=mean, reverse=True)[:2]
    assert [item["text"] for item in best["choices"]] == [item["text"] for item in expected]
    assert best["usage"]["prompt_tokens"] == len(prompt)
    assert best["usage"]["completion_tokens"] == sum(len(item["logprobs"]["tokens"]) for item in five)


# ---- chat


CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which rivers?"}]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhich rivers?<|im_end|>\n<|im_start|>assistant\n"


def chat_content(
    told: list[Body], ids: list[int], table: torch.Tensor, count: int, tokenizer: Tokenizer
) -> None:
    """`told` is OpenAI's content list for the last tokens of `ids`."""
    start = len(ids) - len(told)
    for place, entry in zip(range(start, len(ids)), told, strict=True):
        assert entry["bytes"] == list(token_bytes(tokenizer, ids[place]))
        assert entry["token"] == token_name(tokenizer, ids[place])
        assert entry["logprob"] == pytest.approx(float(table[place - 1, ids[place]]), abs=NEAR)
        best = table[place - 1].topk(count)
        assert [bytes(item["bytes"]) for item in entry["top_logprobs"]] == [
            token_bytes(tokenizer, i) for i in best.indices.tolist()
        ]
        assert [item["logprob"] for item in entry["top_logprobs"]] == pytest.approx(
            best.values.tolist(), abs=NEAR
        )


@pytest.mark.parametrize("count", [0, 5])
def test_a_chat_tells_its_tokens_with_bytes_and_logprobs(
    count: int, exact: Server, tiny_reference: PreTrainedModel
) -> None:
    prompt = TOKENIZER.encode(RENDERED).ids
    body = {
        "messages": CONVERSATION,
        "max_tokens": ANSWER,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": count,
    }
    content = answer(exact, CHAT, body)
    assert content["usage"]["prompt_tokens"] == len(prompt)
    told = content["choices"][0]["logprobs"]["content"]
    assert len(told) == ANSWER
    ids = prompt + theirs_greedy(tiny_reference, prompt, ANSWER)
    chat_content(told, ids, reference_logprobs(tiny_reference, ids), count, TOKENIZER)
    streamed = [
        entry
        for chunk in chunks(exact, CHAT, body)
        for piece in chunk["choices"]
        for entry in (piece["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == told


def test_the_real_model_tells_transformers_logprobs(smollm2: Server, smollm2_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    theirs: PreTrainedModel = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    text = "Water flows from the reservoir through the headrace to the"
    told = greedy(smollm2, text, logprobs=5, echo=True)
    prompt = tokenizer.encode(text).ids
    ids = prompt + theirs_greedy(theirs, prompt, ANSWER)
    table = reference_logprobs(theirs, ids)
    assert told["text"] == tokenizer.decode(ids)
    assert_logprobs(told["logprobs"], ids, 0, table, tokenizer)
    assert_top(told["logprobs"], ids, 0, table, 5, tokenizer)
    assert_offsets(told["logprobs"], told["text"])
