"""Which layers see only a window of the last tokens, read from config.json. No torch."""

from collections.abc import Mapping
from typing import Any

from headrace.models.decoder.fields import read_flag, read_integer, read_texts
from headrace.models.errors import InvalidConfig, UnsupportedModel

FULL, SLIDING = "full_attention", "sliding_attention"
_BELONGS = "Take the config.json that belongs to these weights."


def no_windows(config: Mapping[str, Any], num_layers: int) -> tuple[None, ...]:
    """For a family whose layers all see everything. Raises UnsupportedModel where config.json says otherwise."""
    if SLIDING in _read_layer_types(config, num_layers):
        raise UnsupportedModel(
            f"config.json names {SLIDING} in 'layer_types', which its architecture does not have.",
            remedy=f"Supported: {FULL} in every layer.",
        )
    return (None,) * num_layers


def same_window(config: Mapping[str, Any], num_layers: int, *, default: int | None) -> tuple[int | None, ...]:
    """One `sliding_window` for all layers, or null for none; `default` where the field is absent (as in Mistral)."""
    window = read_integer(config, "sliding_window", 0) or None if "sliding_window" in config else default
    kinds = set(_read_layer_types(config, num_layers))
    if kinds - {SLIDING if window else FULL}:
        raise UnsupportedModel(
            f"config.json gives 'sliding_window' {'null' if window is None else window} for all layers, but names "
            f"{' and '.join(sorted(kinds))} in 'layer_types'.",
            remedy="Supported: layer_types that agree with sliding_window.",
        )
    return (window,) * num_layers


def switched_windows(
    config: Mapping[str, Any], num_layers: int, *, default_window: int, default_first: int
) -> tuple[int | None, ...]:
    """Windows where `use_sliding_window` is on: in the layers that `layer_types` names, or from layer
    `max_window_layers` on (as in Qwen2 and Qwen3).

    Checkpoints carry "sliding_window" and "max_window_layers" even where the switch is off.
    """
    window: int | None = None
    if read_flag(config, "use_sliding_window", False) and config.get("sliding_window", 1) is not None:
        window = read_integer(config, "sliding_window", default_window)
    first = read_integer(config, "max_window_layers", default_first, smallest=0)
    kinds = _read_layer_types(config, num_layers)
    if not kinds:
        return tuple(window if index >= first else None for index in range(num_layers))
    if SLIDING in kinds and window is None:
        raise InvalidConfig(
            f"config.json names {SLIDING} in 'layer_types', but gives no window: 'use_sliding_window' must be true "
            "and 'sliding_window' a number.",
            remedy=_BELONGS,
        )
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _read_layer_types(config: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    kinds = read_texts(config, "layer_types")
    others = sorted(set(kinds) - {FULL, SLIDING})
    if others:
        raise UnsupportedModel(
            f"config.json names {', '.join(others)} in 'layer_types', which Headrace does not compute.",
            remedy=f"Supported: {FULL}, {SLIDING}.",
        )
    if kinds and len(kinds) != num_layers:
        raise InvalidConfig(
            f"config.json gives 'layer_types' {len(kinds)} entries for {num_layers} layers.",
            remedy=_BELONGS,
        )
    return kinds
