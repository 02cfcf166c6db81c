"""The engine's greedy tokens are transformers', for the options of each family."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.harness import (
    ask,
    assert_same_bits,
    expected_parameters,
    forced_logits,
    start_engine,
)
from tests.models.harness import theirs_greedy, theirs_logits
from tests.tiny_models import config_json, make_tiny, median_gap, random_ids, save_checkpoint

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("llama", {}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-explicit-head-dim": ("llama", {"head_dim": 24}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen2-gqa": ("qwen2", {}),
    "qwen2-mqa": ("qwen2", {"num_key_value_heads": 1}),
    "qwen2-explicit-head-dim": ("qwen2", {"head_dim": 24}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-llama3-rope": ("qwen2", {"rope_parameters": LLAMA3_ROPE}),
    "mistral-window": ("mistral", {"sliding_window": 11}),
    "qwen3-gqa": ("qwen3", {}),
}
PROMPT, ANSWER, FORCED = 45, 16, 128


@pytest.fixture(scope="module", params=OPTIONS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    family, fields = OPTIONS[request.param]
    made = make_tiny(family, **fields)
    assert median_gap(made) > 0.05  # no ties by accident
    return made


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in three shards, so that what is fused comes from several files."""
    path = tmp_path_factory.mktemp("tiny")
    save_checkpoint(model, path, shards=3)
    return path


def test_float32_greedy_tokens_are_those_of_transformers(model: PreTrainedModel, folder: Path) -> None:
    engine, _ = start_engine(str(folder), chunked_prefill_size=16)
    prompt = random_ids(model, PROMPT, seed=3)
    assert ask(engine, prompt, ANSWER) == theirs_greedy(model, prompt, ANSWER)


def test_every_parameter_has_the_bytes_of_the_files(model: PreTrainedModel, folder: Path) -> None:
    engine, _ = start_engine(str(folder), skip_server_warmup=True)
    files = sorted(map(str, folder.glob("*.safetensors")))
    expected = expected_parameters(config_json(model), files, torch.float32)
    assert_same_bits(engine.runner.model.parameters, expected)


def test_bfloat16_strays_no_further_from_float32_than_transformers(
    model: PreTrainedModel, folder: Path
) -> None:
    # Converted on the way from the float32 files. As transformers loads them, angles stay float32.
    engine, _ = start_engine(str(folder), dtype="bfloat16")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    # The reference computes in float32 with the weights that bfloat16 can hold.
    exact = copy.deepcopy(model)
    exact.load_state_dict({name: tensor.float() for name, tensor in theirs.state_dict().items()})
    # A maximum over few logits would be a matter of luck.
    rows = [random_ids(model, FORCED, seed=seed) for seed in range(3)]
    cases = [(ids[:1], ids[1:]) for ids in rows]
    # One alone and two together: a step of one row has a kernel of its own.
    ours = torch.cat(forced_logits(engine, cases[:1]) + forced_logits(engine, cases[1:]))
    reference = torch.cat([theirs_logits(exact, ids)[:-1] for ids in rows])
    our_error = largest(ours - reference)
    their_error = largest(torch.cat([theirs_logits(theirs, ids)[:-1] for ids in rows]) - reference)
    assert our_error <= 1.5 * their_error


def largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())
