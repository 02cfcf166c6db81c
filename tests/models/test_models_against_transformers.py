"""Our decoders give what transformers gives for the same weights, for each option of the families."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.models.harness import Request, empty_cache, greedy, ours, step, theirs_greedy, theirs_logits
from tests.tiny_models import in_dtype, make_tiny, median_gap, random_ids

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# name → fields of the config, for both families
SHARED: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "explicit-head-dim": {"head_dim": 24},
    "tied": {"tie_word_embeddings": True},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "other-theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "one-layer": {"num_hidden_layers": 1},
}
LLAMA_ONLY: dict[str, dict[str, Any]] = {
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "everything": {
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 24,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3_ROPE,
    },
}
CASES = [
    *((family, name, fields) for family in ("llama", "qwen2") for name, fields in SHARED.items()),
    *(("llama", name, fields) for name, fields in LLAMA_ONLY.items()),
]
PROMPT, ANSWER = 70, 24

each_option = pytest.mark.parametrize(
    ("family", "fields"),
    [pytest.param(family, fields, id=f"{family}-{name}") for family, name, fields in CASES],
)


def distinct(family: str, fields: dict[str, Any]) -> PreTrainedModel:
    """A tiny model whose best token stands out, so that equal tokens are no accident and no matter of rounding."""
    model = make_tiny(family, **fields)
    assert median_gap(model) > 0.05
    return model


@each_option
def test_float32_logits_are_those_of_transformers(family: str, fields: dict[str, Any]) -> None:
    model = distinct(family, fields)
    ids = random_ids(model, PROMPT, seed=2)
    decoder = ours(model)
    logits = step(decoder, empty_cache(decoder, PROMPT), prefills=[(Request(torch.arange(PROMPT)), ids)])
    torch.testing.assert_close(logits, theirs_logits(model, ids), rtol=1e-4, atol=1e-4)


@each_option
def test_float32_greedy_tokens_are_those_of_transformers(family: str, fields: dict[str, Any]) -> None:
    model = distinct(family, fields)
    prompt = random_ids(model, PROMPT, seed=3)
    assert greedy(ours(model), prompt, ANSWER) == theirs_greedy(model, prompt, ANSWER)


@each_option
def test_bfloat16_strays_no_further_from_float32_than_transformers(
    family: str, fields: dict[str, Any]
) -> None:
    exact = distinct(family, fields)
    # The reference computes in float32 with the weights that bfloat16 can hold.
    rounded = in_dtype(exact, torch.bfloat16)
    exact.load_state_dict({name: tensor.float() for name, tensor in rounded.state_dict().items()})
    ids = random_ids(exact, PROMPT + ANSWER, seed=4)
    reference = theirs_logits(exact, ids)

    decoder = ours(rounded)
    assert decoder.dtype is torch.bfloat16
    cache, request = empty_cache(decoder, len(ids)), Request(torch.arange(len(ids)))
    step(decoder, cache, prefills=[(request, ids[:PROMPT])])
    for token in ids[PROMPT:]:
        step(decoder, cache, decodes=[(request, token)])

    our_error = (torch.stack(request.logits) - reference).abs().max()
    their_error = (theirs_logits(rounded, ids) - reference).abs().max()
    assert our_error <= 1.5 * their_error


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_float16_runs_close_to_float32(family: str) -> None:
    exact = distinct(family, {})
    half = in_dtype(exact, torch.float16)
    ids = random_ids(exact, PROMPT, seed=5)
    decoder = ours(half)
    logits = step(decoder, empty_cache(decoder, PROMPT), prefills=[(Request(torch.arange(PROMPT)), ids)])
    reference = theirs_logits(exact, ids)
    our_error, their_error = ((found - reference).abs().max() for found in (logits, theirs_logits(half, ids)))
    assert our_error <= 1.5 * their_error
