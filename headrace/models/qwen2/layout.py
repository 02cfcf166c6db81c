"""Qwen2 and Qwen2.5: always a bias on q, k and v, never another. No torch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.models.decoder.config import DecoderConfig, read_decoder_config
from headrace.models.decoder.layout import decoder_layout
from headrace.models.decoder.windows import switched_windows
from headrace.models.layout import Layout


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """A Qwen2 config.json. Raises InvalidConfig and UnsupportedModel as `read_decoder_config` does."""
    return read_decoder_config(
        config,
        attention_bias=True,
        output_bias=False,
        mlp_bias=False,
        default_max_position_embeddings=32768,
        windows=partial(switched_windows, default_window=4096, default_first=28),
    )


def layout(config: DecoderConfig) -> Layout:
    """The checkpoint layout of a Qwen2 model."""
    return decoder_layout(config)
