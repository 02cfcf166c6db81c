"""Qwen3: each head of q and k is normed; biases only where config.json asks. No torch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.models.decoder.config import DecoderConfig, read_decoder_config
from headrace.models.decoder.fields import read_flag
from headrace.models.decoder.layout import decoder_layout
from headrace.models.decoder.windows import switched_windows
from headrace.models.layout import Layout


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """A Qwen3 config.json. Raises InvalidConfig and UnsupportedModel as `read_decoder_config` does."""
    attention_bias = read_flag(config, "attention_bias", False)
    return read_decoder_config(
        config,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=False,
        default_max_position_embeddings=32768,
        windows=partial(switched_windows, default_window=4096, default_first=28),
        query_key_norm=True,
        default_head_dim=128,
    )


def layout(config: DecoderConfig) -> Layout:
    """The checkpoint layout of a Qwen3 model."""
    return decoder_layout(config)
