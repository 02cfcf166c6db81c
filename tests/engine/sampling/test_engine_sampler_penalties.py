"""Bias, penalties and min_tokens: which tokens they reach, by how much, and when."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from headrace.engine.sampling.penalties import Adjustments, adjust
from headrace.engine.sampling.sampler import Sampled, Sampler
from headrace.engine.scheduling.request import Request
from headrace.ipc.messages import SamplingParams

VOCAB = 500
EOS = frozenset({3, 4})


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def adjusted(
    row: torch.Tensor, prompt: list[int], output: list[int], eos: frozenset[int] = EOS, **fields: Any
) -> Any:
    """The row's logits after a request's changes, [vocab]."""
    own = row.clone()
    adjust(own, [Adjustments(params(**fields), prompt, eos, row.shape[1])], [output])
    return own[0]


def test_repetition_bias_and_min_tokens_are_those_of_transformers() -> None:
    row, prompt, output = logits(1), [5, 6, 6, 400], [7, 5, 9]
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[6], 2.5], [[8], -4.0]]),
            RepetitionPenaltyLogitsProcessor(1.3),
            MinNewTokensLengthLogitsProcessor(len(prompt), 4, list(EOS)),
        ]
    )(torch.tensor([prompt + output]), row)
    ours = adjusted(
        row, prompt, output, repetition_penalty=1.3, logit_bias=((6, 2.5), (8, -4.0)), min_tokens=4
    )
    torch.testing.assert_close(ours, theirs[0], rtol=0, atol=1e-6)


def test_presence_and_frequency_reach_the_answer_alone() -> None:
    row = logits(2)
    ours = adjusted(row, [5, 6], [7, 8, 7, 7], presence_penalty=0.5, frequency_penalty=0.25)
    expected = row[0].clone()
    expected[7] -= 0.5 + 3 * 0.25
    expected[8] -= 0.5 + 0.25
    assert torch.equal(ours, expected)


def test_a_token_of_prompt_and_answer_is_penalised_once_for_repetition() -> None:
    row = torch.ones(1, VOCAB)
    assert float(adjusted(row, [5, 5], [5, 5], repetition_penalty=2.0)[5]) == 0.5


def test_a_logit_of_0_stays_0_under_repetition() -> None:
    row = torch.zeros(1, VOCAB)
    assert torch.equal(adjusted(row, [5], [], repetition_penalty=1e-320)[:10], torch.zeros(10))


@pytest.mark.parametrize("penalty", [1e-320, 1e-45, 1e-30])
def test_a_tiny_repetition_penalty_makes_no_infinity_that_could_not_be_drawn_from(penalty: float) -> None:
    row = logits(3)
    row[0, 5] = 20.0
    request = Request("r", [5], params(repetition_penalty=penalty, seed=1))
    found = Sampler(0).sample(row, [request])
    assert [isinstance(each, Sampled) and each.token_id for each in found] == [5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_100_chooses_and_one_of_minus_100_bans(temperature: float) -> None:
    row = logits(4)
    best = int(row.argmax())
    for bias, expected in ((((9, 100.0),), {9}), (((best, -100.0),), set(range(VOCAB)) - {best})):
        sampler = Sampler(1)
        request = Request("r", [1], params(temperature=temperature, logit_bias=bias, seed=2))
        for _ in range(30):
            found = sampler.sample(row, [request])[0]
            assert isinstance(found, Sampled) and found.token_id in expected


def test_until_min_tokens_neither_the_ends_of_sequence_nor_stop_token_ids_can_be_chosen() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, [3, 4, 5, 6]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    request = Request("r", [1], params(temperature=0.0, min_tokens=2, stop_token_ids=(5,)))
    sampler = Sampler(0, EOS)
    for _ in range(4):
        found = sampler.sample(row, [request])[0]
        assert isinstance(found, Sampled)
        request.output.append(found.token_id)
    assert request.output == [6, 6, 3, 3]


def test_with_ignore_eos_only_stop_token_ids_are_held_off() -> None:
    row = logits(5)
    ours = adjusted(row, [1], [], min_tokens=1, ignore_eos=True, stop_token_ids=(4, 9))
    assert ours.isneginf().nonzero()[:, 0].tolist() == [4, 9]


def test_an_end_of_sequence_beyond_the_vocabulary_is_passed_over() -> None:
    ours = adjusted(
        logits(6), [1, VOCAB + 5], [], frozenset({3, VOCAB, VOCAB + 9}), min_tokens=1, repetition_penalty=2
    )
    assert ours.isneginf().nonzero()[:, 0].tolist() == [3]


def test_rows_are_adjusted_each_by_its_own_request() -> None:
    rows = logits(7, rows=4)
    options: list[dict[str, Any]] = [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0, "logit_bias": ((1, 5.0), (2, 6.0))},
        {"min_tokens": 9, "frequency_penalty": -0.5},
        {"logit_bias": ((499, -3.0),)},
    ]
    prompts = [[1, 2], [3], [4, 5, 6], [7]]
    outputs = [[8], [9, 9], [10], []]
    own = rows.clone()
    requests = [
        Adjustments(params(**fields), prompt, EOS, VOCAB)
        for fields, prompt in zip(options, prompts, strict=True)
    ]
    adjust(own, requests, outputs)
    for row, fields in enumerate(options):
        assert torch.equal(own[row], adjusted(rows[row : row + 1], prompts[row], outputs[row], **fields))


@given(
    st.lists(st.integers(0, 40), max_size=150),
    st.lists(st.integers(0, VOCAB - 1), max_size=300),
    st.data(),
)
def test_counting_as_the_answer_grows_equals_counting_it_at_once(
    prompt: list[int], output: list[int], data: st.DataObject
) -> None:
    options: dict[str, Any] = {
        "repetition_penalty": data.draw(st.sampled_from([1.0, 1.2])),
        "presence_penalty": data.draw(st.sampled_from([0.0, 0.7])),
        "frequency_penalty": 0.1,
    }
    row = logits(8)
    growing = Adjustments(params(**options), prompt, EOS, VOCAB)
    for end in sorted({*data.draw(st.lists(st.integers(0, len(output)), max_size=5)), len(output)}):
        own = row.clone()
        adjust(own, [growing], [output[:end]])
        expected = row[0].double().clone()
        for token in set(prompt + output[:end]):
            value = expected[token]
            scale = options["repetition_penalty"]
            expected[token] = value * scale if value < 0 else value / scale
        for token in set(output[:end]):
            expected[token] -= options["presence_penalty"] + 0.1 * output[:end].count(token)
        torch.testing.assert_close(own[0].double(), expected, rtol=0, atol=1e-5)


def test_a_forgotten_request_leaves_no_counts_behind() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, [5, 6]] = torch.tensor([2.0, 1.5])
    sampler = Sampler(0)
    sampling = params(temperature=0.0, presence_penalty=1.0)
    for _ in range(2):
        request = Request("r", [1], sampling)
        for _ in range(2):
            found = sampler.sample(row, [request])[0]
            assert isinstance(found, Sampled)
            request.output.append(found.token_id)
        assert request.output == [5, 6]
        sampler.forget("r")
