"""Llama (and what is shaped like it: SmolLM2, Llama 2 and 3): biases only where config.json asks. No torch."""

from collections.abc import Mapping
from typing import Any

from headrace.models.decoder.config import DecoderConfig, read_decoder_config
from headrace.models.decoder.fields import read_flag
from headrace.models.decoder.layout import decoder_layout
from headrace.models.layout import Layout


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """A Llama config.json. Raises InvalidConfig and UnsupportedModel as `read_decoder_config` does."""
    attention_bias = read_flag(config, "attention_bias", False)
    return read_decoder_config(
        config,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=read_flag(config, "mlp_bias", False),
        default_max_position_embeddings=2048,
    )


def layout(config: DecoderConfig) -> Layout:
    """The checkpoint layout of a Llama model."""
    return decoder_layout(config)
