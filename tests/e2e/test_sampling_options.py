"""What a request asks of its sampling, over HTTP: greedy with penalties as transformers does it, draws that repeat."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.e2e.reading import COMPLETIONS, Body, answer, choice, ids_of, reference_logprobs, together
from tests.e2e.serving import Server
from tests.models.harness import theirs_greedy, theirs_logits
from tests.tiny_models import tiny_tokenizer

ANSWER = 48
TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """A whole text: after half a character, an answer of no tokens would still end that character."""
    return TOKENIZER.encode("Where a river falls, a miller builds.").ids


@pytest.fixture(scope="module")
def plain(tiny_reference: PreTrainedModel, prompt: list[int]) -> list[int]:
    """The greedy tokens without any option."""
    return theirs_greedy(tiny_reference, prompt, ANSWER)


def told_ids(told: Body) -> list[int]:
    """The token ids of a choice that was asked for logprobs."""
    return ids_of(TOKENIZER, told["logprobs"]["tokens"])


def ours(server: Server, prompt: Sequence[int], **fields: Any) -> list[int]:
    """The greedy tokens of the server, the one that ends the answer included."""
    body = {"max_tokens": ANSWER, "logprobs": 0, "ignore_eos": True, **fields}
    return told_ids(choice(server, prompt=list(prompt), **body))


def theirs(model: PreTrainedModel, prompt: Sequence[int], **options: Any) -> list[int]:
    """The greedy tokens of transformers' generate with its own processors."""
    given = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(  # type: ignore[operator]
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            max_new_tokens=ANSWER,
            pad_token_id=0,
            **{"eos_token_id": None, **options},
        )
    ids: list[int] = out[0, len(prompt) :].tolist()
    return ids


# ---- penalties and bias


@pytest.mark.parametrize("penalty", [0.7, 1.1, 1.8])
def test_repetition_penalty_is_transformers(
    penalty: float, exact: Server, tiny_reference: PreTrainedModel, prompt: list[int], plain: list[int]
) -> None:
    expected = theirs(tiny_reference, prompt, repetition_penalty=penalty)
    assert expected != plain
    assert ours(exact, prompt, repetition_penalty=penalty) == expected


def test_logit_bias_is_transformers_sequence_bias(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int], plain: list[int]
) -> None:
    biases = {plain[0]: -100.0, plain[1]: -3.5, plain[7]: 1.5, 42: 2.25}
    expected = theirs(
        tiny_reference, prompt, sequence_bias={(token,): bias for token, bias in biases.items()}
    )
    assert plain[0] not in expected
    assert ours(exact, prompt, logit_bias={str(token): bias for token, bias in biases.items()}) == expected


def test_bias_comes_before_the_repetition_penalty(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int]
) -> None:
    biases = dict.fromkeys(range(30, 60), 6.0)
    options = {"sequence_bias": {(token,): bias for token, bias in biases.items()}, "repetition_penalty": 1.6}
    expected = theirs(tiny_reference, prompt, **options)
    fields = {"logit_bias": {str(token): bias for token, bias in biases.items()}, "repetition_penalty": 1.6}
    assert ours(exact, prompt, **fields) == expected


def test_a_bias_of_a_hundred_forces_a_token(exact: Server, prompt: list[int]) -> None:
    assert ours(exact, prompt, logit_bias={"77": 100}) == [77] * ANSWER
    assert ours(exact, prompt, logit_bias={"77": 100}, temperature=1.0, seed=1) == [77] * ANSWER


def penalized(
    model: PreTrainedModel, prompt: Sequence[int], presence: float, frequency: float
) -> tuple[list[int], float]:
    """Greedy tokens under OpenAI's formula for the two penalties, and the smallest gap that decided."""
    output: list[int] = []
    narrowest = float("inf")
    for _ in range(ANSWER):
        logits = theirs_logits(model, [*prompt, *output])[-1].double()
        for token in set(output):
            logits[token] -= presence + frequency * output.count(token)
        best = logits.topk(2).values
        narrowest = min(narrowest, float(best[0] - best[1]))
        output.append(int(logits.argmax()))
    return output, narrowest


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.8), (0.6, 0.4), (-0.7, -0.2)])
def test_presence_and_frequency_are_taken_from_what_was_answered(
    presence: float,
    frequency: float,
    exact: Server,
    tiny_reference: PreTrainedModel,
    prompt: list[int],
    plain: list[int],
) -> None:
    expected, narrowest = penalized(tiny_reference, prompt, presence, frequency)
    assert narrowest > 1e-3  # no tie by accident
    assert expected != plain
    assert ours(exact, prompt, presence_penalty=presence, frequency_penalty=frequency) == expected


def test_the_prompts_own_tokens_are_not_penalized_by_presence(exact: Server, prompt: list[int]) -> None:
    first = ours(exact, prompt, max_tokens=1)
    heard = [*first, *prompt]
    assert ours(exact, heard, max_tokens=1, presence_penalty=2, frequency_penalty=2) == ours(
        exact, heard, max_tokens=1
    )


# ---- ends


def test_min_tokens_is_transformers_min_new_tokens(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int], plain: list[int]
) -> None:
    ends = [plain[4], plain[11], plain[20]]
    expected = theirs(tiny_reference, prompt, eos_token_id=ends, min_new_tokens=30)
    assert expected[:30] != plain[:30]
    assert len(expected) >= 30
    assert ours(exact, prompt, stop_token_ids=ends, min_tokens=30) == expected


def test_min_tokens_holds_off_the_models_own_ends_too(exact: Server, prompt: list[int]) -> None:
    eager = {"prompt": prompt, "max_tokens": 20, "logit_bias": {"2": 100}, "logprobs": 0}
    early = choice(exact, **eager)
    assert (early["finish_reason"], early["matched_stop"], early["text"]) == ("stop", 2, "")
    late = choice(exact, **eager, min_tokens=9)
    assert (late["finish_reason"], late["matched_stop"]) == ("stop", 2)
    ids = told_ids(late)
    assert len(ids) == 10
    assert not {0, 2} & set(ids[:9])


@pytest.mark.parametrize("place", [0, 6, 30])
def test_a_stop_token_id_ends_the_answer_and_is_no_part_of_its_text(
    place: int, exact: Server, prompt: list[int], plain: list[int]
) -> None:
    end = plain[place]
    count = plain.index(end)
    body = {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
    content = answer(exact, COMPLETIONS, {**body, "stop_token_ids": [end, 319]})
    (told,) = content["choices"]
    assert (told["finish_reason"], told["matched_stop"]) == ("stop", end)
    before = exact.complete(prompt, max_tokens=count, ignore_eos=True) if count else ""
    assert told["text"] == before
    assert content["usage"]["completion_tokens"] == count + 1


# ---- draws


def test_min_p_leaves_out_what_is_less_likely_than_its_share_of_the_likeliest(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int]
) -> None:
    temperature, share = 2.0, 0.25
    scaled = (theirs_logits(tiny_reference, prompt)[-1] / temperature).softmax(-1)
    kept = set((scaled >= share * scaled.max()).nonzero()[:, 0].tolist())
    assert 2 <= len(kept) <= 20
    body = {"prompt": prompt, "max_tokens": 1, "temperature": temperature, "n": 128, "seed": 3, "logprobs": 0}

    def drawn(**fields: Any) -> set[int]:
        choices = answer(exact, COMPLETIONS, {**body, "ignore_eos": True, **fields})["choices"]
        return {told_ids(told)[0] for told in choices}

    assert 1 < len(drawn(min_p=share)) <= len(kept)
    assert drawn(min_p=share) <= kept
    assert not drawn(min_p=0) <= kept


def test_a_min_p_of_one_takes_the_likeliest(exact: Server, prompt: list[int], plain: list[int]) -> None:
    assert ours(exact, prompt, min_p=1, temperature=1.5, seed=4) == plain


def test_draws_follow_the_models_own_distribution(
    exact: Server, tiny_reference: PreTrainedModel, prompt: list[int]
) -> None:
    expected = reference_logprobs(tiny_reference, prompt)[-1].exp()
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 1.0, "n": 128, "logprobs": 0}
    counts = torch.zeros(len(expected), dtype=torch.float64)
    for seed in range(4):
        choices = answer(exact, COMPLETIONS, {**body, "seed": seed, "ignore_eos": True})["choices"]
        for told in choices:
            counts[told_ids(told)[0]] += 1
    total = float(counts.sum())
    for token in expected.topk(3).indices.tolist():
        share = float(expected[token])
        spread = (share * (1 - share) / total) ** 0.5
        assert abs(float(counts[token]) / total - share) < 4.5 * spread


def test_a_seed_gives_the_same_text_alone_and_beside_others(exact: Server, prompt: list[int]) -> None:
    # Rounding differs with what is computed together, and may shift a draw among tokens as unlikely as rounding is
    # large: top_k leaves those out.
    body = {
        "prompt": prompt,
        "max_tokens": 60,
        "temperature": 0.9,
        "top_k": 8,
        "seed": 2**40 + 1,
        "ignore_eos": True,
    }
    alone = answer(exact, COMPLETIONS, body)["choices"][0]["text"]
    others = [
        {**body, "seed": None, "prompt": [5 + number] * (7 * number + 1), "temperature": 1.3}
        for number in range(7)
    ]
    calls = [partial(answer, exact, COMPLETIONS, fields) for fields in [*others, body, body]]
    contents = together(calls)
    assert [content["choices"][0]["text"] for content in contents[-2:]] == [alone, alone]
    assert len({content["choices"][0]["text"] for content in contents}) == len(others) + 1


def test_without_a_seed_draws_differ(exact: Server, prompt: list[int]) -> None:
    body = {"prompt": prompt, "max_tokens": 30, "temperature": 1.0, "n": 4, "ignore_eos": True}
    texts = [item["text"] for _ in range(2) for item in answer(exact, COMPLETIONS, body)["choices"]]
    assert len(set(texts)) == 8


def test_seeds_draw_the_same_in_a_chat_and_its_stream_of_choices(exact: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 12,
        "temperature": 1.0,
        "top_k": 8,
        "seed": -5,
        "n": 3,
    }
    first = answer(exact, "/v1/chat/completions", body)["choices"]
    again = answer(exact, "/v1/chat/completions", body)["choices"]
    one = answer(exact, "/v1/chat/completions", {**body, "n": 1})["choices"]
    assert first == again
    assert one[0]["message"] == first[0]["message"]
