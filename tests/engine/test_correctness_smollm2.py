"""A real model out of a real bucket: the engine's tokens and logits against transformers' on the same weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from headrace.demo.store import SeaweedStore
from headrace.engine.engine import Engine
from headrace.ipc.messages import Generate, Ready
from headrace.models.decoder.parameters import DecoderParameters
from tests.engine.harness import (
    ask,
    assert_same_bits,
    environment,
    expected_parameters,
    forced_logits,
    greedy,
    start_engine,
)
from tests.engine.held_loads import Do, Event
from tests.engine.held_loads import load as load_by_script
from tests.models.harness import theirs_greedy, theirs_logits
from tests.tiny_models import config_json

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nName three rivers.<|im_end|>\n<|im_start|>assistant\n",
    "Water flows from the reservoir through the headrace to",
    "1, 1, 2, 3, 5, 8,",
)
ANSWER = 64
POOL: dict[str, Any] = {"max_total_tokens": 1024}
PARAMETERS = 134_515_008


@pytest.fixture(scope="module")
def prompts(smollm2_folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def theirs(smollm2_folder: Path) -> PreTrainedModel:
    """transformers' model in float32 on the bucket's weights."""
    torch.set_num_threads(1)
    return load(smollm2_folder, torch.float32)


def load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model


def chosen_from(model: PreTrainedModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """The logits from which transformers chooses each token of `answer`, given those before it."""
    return theirs_logits(model, prompt + answer)[len(prompt) - 1 : -1]


@pytest.fixture(scope="module")
def bucket(smollm2_uri: str, seaweed: SeaweedStore) -> Iterator[str]:
    """The model's URI, with the surroundings that lead to it."""
    with environment(seaweed.environment()):
        yield smollm2_uri


@pytest.fixture(scope="module")
def answers(bucket: str, prompts: list[list[int]]) -> list[list[int]]:
    """The engine's greedy tokens in float32, one prompt after another."""
    engine, _ = start_engine(bucket, dtype="float32", **POOL)
    return [ask(engine, prompt, ANSWER) for prompt in prompts]


@pytest.fixture(scope="module")
def reference(
    theirs: PreTrainedModel, prompts: list[list[int]], answers: list[list[int]]
) -> list[torch.Tensor]:
    """transformers' float32 logits over each answer: [ANSWER, vocab]."""
    return [chosen_from(theirs, *both) for both in zip(prompts, answers, strict=True)]


@pytest.fixture(scope="module")
def engine_bfloat16(bucket: str) -> Engine:
    engine, sent = start_engine(bucket, concurrency=8, **POOL)
    ready = sent[-1]
    assert isinstance(ready, Ready)
    assert ready.bytes_streamed == PARAMETERS * 2
    return engine


def test_float32_greedy_tokens_are_what_transformers_generates(
    theirs: PreTrainedModel, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    assert answers[0] == theirs_greedy(theirs, prompts[0], ANSWER)


def test_each_float32_token_is_the_likeliest_for_transformers_after_those_before_it(
    reference: list[torch.Tensor], answers: list[list[int]]
) -> None:
    # Which makes the whole its greedy answer, without its sixty-four steps a prompt.
    assert [logits.argmax(-1).tolist() for logits in reference] == answers


@pytest.mark.parametrize("early", [1, 4])
def test_what_is_asked_for_while_it_loads_gets_the_same_answer(
    early: int, bucket: str, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    """The first `early` prompts wait before there is a model, the others come later, each on its own."""
    waits: list[Event] = [Do(lambda: None)] * 2
    events: list[Event] = []
    for number, prompt in enumerate(prompts):
        events += [*(waits if number >= early else []), Generate(str(number), prompt, greedy(ANSWER))]
    loaded = load_by_script(bucket, events, dtype="float32", **POOL)
    assert "first prompt" in loaded.phases
    got = loaded.finish()
    assert [got[str(number)].tokens for number in range(len(prompts))] == answers


def test_bfloat16_is_the_same_bits_while_it_loads(
    bucket: str, prompts: list[list[int]], smollm2_folder: Path
) -> None:
    options: dict[str, Any] = {**POOL, "enable_deterministic_inference": True, "chunked_prefill_size": 8}
    sampling = msgspec.structs.replace(greedy(8), logprobs=2)
    messages = [Generate(str(number), prompt, sampling) for number, prompt in enumerate(prompts)]
    whole = load_by_script(str(smollm2_folder), [], **options)
    expected = {}
    for message in messages:
        assert whole.engine.take(message) is None
        expected.update(whole.finish())
    loaded = load_by_script(bucket, messages, **options)
    assert loaded.finish() == expected


def test_bfloat16_strays_no_further_from_float32_than_transformers(
    engine_bfloat16: Engine,
    prompts: list[list[int]],
    answers: list[list[int]],
    reference: list[torch.Tensor],
    smollm2_folder: Path,
) -> None:
    theirs = load(smollm2_folder, torch.bfloat16)
    cases = list(zip(prompts, answers, strict=True))
    # One alone and four together: a step of one row has a kernel of its own.
    ours = forced_logits(engine_bfloat16, cases[:1]) + forced_logits(engine_bfloat16, cases[1:])
    our_error, their_error = 0.0, 0.0
    for case, logits, exact in zip(cases, ours, reference, strict=True):
        our_error = max(our_error, float((logits - exact).abs().max()))
        their_error = max(their_error, float((chosen_from(theirs, *case) - exact).abs().max()))
    assert our_error <= 1.5 * their_error


def test_every_parameter_has_the_bytes_in_the_bucket(
    engine_bfloat16: Engine, theirs: PreTrainedModel, smollm2_folder: Path
) -> None:
    assert_same_bits(engine_bfloat16.runner.model.parameters, in_the_bucket(theirs, smollm2_folder))


def test_every_parameter_has_the_bytes_in_the_bucket_over_one_connection(
    bucket: str, theirs: PreTrainedModel, smollm2_folder: Path
) -> None:
    engine, _ = start_engine(bucket, concurrency=1, skip_server_warmup=True, **POOL)
    assert_same_bits(engine.runner.model.parameters, in_the_bucket(theirs, smollm2_folder))


def in_the_bucket(model: PreTrainedModel, folder: Path) -> DecoderParameters:
    return expected_parameters(config_json(model), [str(folder / "model.safetensors")], torch.bfloat16)
