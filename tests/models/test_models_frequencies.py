"""The rotary frequencies of each scaling are those of transformers, at every length."""

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headrace.models.batch import ForwardBatch, PrefillSpan
from headrace.models.decoder.frequencies import frequencies_by_length, inverse_frequencies
from headrace.models.decoder.rope import RopeConfig
from headrace.models.decoder.step import sequence_lengths
from headrace.models.registry import read_config

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    {**LLAMA3, "original_max_position_embeddings": 256},
    YARN,
    {**YARN, "truncate": False},
    {**YARN, "beta_fast": 8.0, "beta_slow": 2.0},
    {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},  # a ramp without length
    {**YARN, "beta_slow": 1e-8, "truncate": False},  # the ramp would end behind the last dimension
    {**YARN, "attention_factor": 0.7},
    {**YARN, "mscale": 1.5, "mscale_all_dim": 0.5},
    {**YARN, "original_max_position_embeddings": 4},  # the ramp begins before the first pair
    {"rope_type": "yarn", "factor": 40.0},
]


def config_of(settings: dict[str, Any], head_dim: int, theta: float) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=320,
        head_dim=head_dim,
        max_position_embeddings=1024,
        rope_parameters={"rope_theta": theta, **settings},
    )


def ours(config: transformers.LlamaConfig) -> RopeConfig:
    return read_config({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}).rope


def theirs(config: transformers.LlamaConfig, length: int | None = None) -> tuple[torch.Tensor, float]:
    assert config.rope_parameters is not None
    make = ROPE_INIT_FUNCTIONS[str(config.rope_parameters["rope_type"])]
    frequencies, factor = make(config, torch.device("cpu"), seq_len=length)
    return frequencies, float(factor)


@pytest.mark.parametrize("settings", SCALINGS, ids=str)
@pytest.mark.parametrize("head_dim", [10, 64, 80, 96, 128])
@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
def test_a_scaling_gives_the_frequencies_of_transformers(
    settings: dict[str, Any], head_dim: int, theta: float
) -> None:
    config = config_of(settings, head_dim, theta)
    rope = ours(config)
    frequencies, factor = theirs(config)
    torch.testing.assert_close(inverse_frequencies(rope, head_dim), frequencies, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)
    assert not rope.depends_on_length


@pytest.mark.parametrize("head_dim", [10, 64, 96])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_of_a_length_are_those_of_transformers_at_that_length(kind: str, head_dim: int) -> None:
    pairs = head_dim // 2
    settings: dict[str, Any] = {"rope_type": kind, "factor": 4.0}
    if kind == "longrope":
        settings |= {
            "short_factor": [1 + 0.1 * pair for pair in range(pairs)],
            "long_factor": [1 + 3.0 * pair for pair in range(pairs)],
            "original_max_position_embeddings": 512,
        }
    config = config_of(settings, head_dim, 10000.0)
    rope = ours(config)
    assert rope.depends_on_length
    short = inverse_frequencies(rope, head_dim)
    torch.testing.assert_close(short, theirs(config)[0], rtol=1e-6, atol=0)
    lengths = [1, 511, 512, 513, 1023, 1024, 1025, 3000, 4096]
    found = frequencies_by_length(rope, short, torch.tensor(lengths), head_dim)
    expected = torch.stack([theirs(config, length)[0] for length in lengths])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert rope.attention_factor == pytest.approx(theirs(config)[1], rel=1e-12)
    assert len({tuple(row.tolist()) for row in found}) == (2 if kind == "longrope" else 4)


def test_the_length_of_a_prompt_counts_for_all_its_chunks_and_later_tokens_count_themselves() -> None:
    """Rows: a whole prompt of 3, the second chunk of a prompt of 9, a prompt of 4 computed again with the 2 tokens
    that followed it, and two decoding requests."""
    batch = ForwardBatch(
        input_ids=torch.zeros(14, dtype=torch.int64),
        positions=torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 7, 20]),
        write_slots=torch.arange(14),
        prefills=(
            PrefillSpan(0, 3, torch.arange(3)),
            PrefillSpan(3, 3, torch.arange(6), prompt_length=9),
            PrefillSpan(6, 6, torch.arange(6), prompt_length=4),
        ),
        decode_slots=torch.zeros(2, 21, dtype=torch.int64),
        decode_lengths=torch.tensor([8, 21]),
        logit_rows=torch.tensor([13]),
    )
    assert sequence_lengths(batch).tolist() == [3, 3, 3, 9, 9, 9, 4, 4, 4, 4, 5, 6, 8, 21]
