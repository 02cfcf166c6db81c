"""Mistral: no biases, and one sliding window for all layers where config.json gives one. No torch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.models.decoder.config import DecoderConfig, read_decoder_config
from headrace.models.decoder.layout import decoder_layout
from headrace.models.decoder.windows import same_window
from headrace.models.layout import Layout


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """A Mistral config.json. Raises InvalidConfig and UnsupportedModel as `read_decoder_config` does."""
    return read_decoder_config(
        config,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        default_max_position_embeddings=131072,
        windows=partial(same_window, default=4096),
        default_kv_heads=8,
    )


def layout(config: DecoderConfig) -> Layout:
    """The checkpoint layout of a Mistral model."""
    return decoder_layout(config)
