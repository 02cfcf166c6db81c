"""Qwen2 and Qwen2.5: always a bias on q, k and v, never another. No torch."""

from collections.abc import Mapping
from typing import Any

from headrace.models.decoder.config import DecoderConfig, read_decoder_config
from headrace.models.decoder.fields import read_flag, read_texts
from headrace.models.decoder.layout import decoder_layout
from headrace.models.errors import UnsupportedModel
from headrace.models.layout import Layout


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """A Qwen2 config.json. Raises InvalidConfig and UnsupportedModel as `read_decoder_config` does."""
    _refuse_sliding_window(config)
    return read_decoder_config(
        config,
        attention_bias=True,
        output_bias=False,
        mlp_bias=False,
        default_max_position_embeddings=32768,
    )


def layout(config: DecoderConfig) -> Layout:
    """The checkpoint layout of a Qwen2 model."""
    return decoder_layout(config)


def _refuse_sliding_window(config: Mapping[str, Any]) -> None:
    # Checkpoints carry "sliding_window" and "max_window_layers" even where the switch is off.
    if read_flag(config, "use_sliding_window", False):
        raise UnsupportedModel(
            "config.json asks for sliding-window attention (use_sliding_window true), which Headrace does not "
            "compute.",
            remedy="Supported: full attention in every layer.",
        )
    others = sorted(set(read_texts(config, "layer_types")) - {"full_attention"})
    if others:
        raise UnsupportedModel(
            f"config.json names {', '.join(others)} in 'layer_types', which Headrace does not compute.",
            remedy="Supported: full_attention in every layer.",
        )
