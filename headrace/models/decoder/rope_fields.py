"""Reads a checkpoint's rotary settings from config.json. No torch.

There are three spellings: `rope_scaling` with `rope_type`, `rope_scaling` with the older `type`, and the
`rope_parameters` of transformers 5, which hold the base frequency too. Defaults are those of transformers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.decoder.fields import (
    LARGEST_INTEGER,
    read_flag,
    read_integer,
    read_number,
    read_numbers,
    read_object,
    read_text,
    wrong_field,
)
from headrace.models.decoder.rope import (
    DEFAULT_THETA,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    Scaling,
    YarnScaling,
)
from headrace.models.errors import InvalidConfig, UnsupportedModel

_BELONGS = "Take the config.json that belongs to these weights."


def read_rope(config: Mapping[str, Any], max_position_embeddings: int, head_dim: int) -> RopeConfig:
    """The rotary settings of a parsed config.json.

    Raises UnsupportedModel for a scaling that is not computed here, InvalidConfig for one that is ill-formed.
    """
    # An empty or null rope_scaling says nothing; one with content wins, as in transformers.
    name = "rope_scaling" if read_object(config, "rope_scaling") else "rope_parameters"
    settings = read_object(config, name)
    if any(isinstance(value, Mapping) for value in settings.values()):
        raise UnsupportedModel(
            f"config.json gives {name!r} for each layer type on its own ({', '.join(map(str, settings))}), "
            "which Headrace does not compute.",
            remedy="Supported: one rotary setting for all layers.",
        )
    theta = read_number(settings, "rope_theta", read_number(config, "rope_theta", DEFAULT_THETA))
    partial = read_number(
        settings, "partial_rotary_factor", read_number(config, "partial_rotary_factor", 1.0)
    )
    if partial != 1.0:
        raise UnsupportedModel(
            f"config.json asks for rotary embedding over a part of each head (partial_rotary_factor {partial}), "
            "which Headrace does not compute.",
            remedy="Supported: partial_rotary_factor 1.0.",
        )
    kind = _read_kind(settings, name)
    if kind == "default":
        return RopeConfig(theta)
    if kind not in _READERS:
        raise UnsupportedModel(
            f"config.json asks for the rotary scaling {kind!r} in {name!r}, which Headrace does not compute.",
            remedy=f"Supported: default, {', '.join(_READERS)}.",
        )
    # Some checkpoints write it beside the settings, and then it counts.
    original = read_integer(
        config,
        "original_max_position_embeddings",
        read_integer(settings, "original_max_position_embeddings", max_position_embeddings),
    )
    scaling = _READERS[kind](_Settings(settings, name, theta, head_dim, max_position_embeddings, original))
    return RopeConfig(theta, scaling)


def longest_context(config: Mapping[str, Any], rope: RopeConfig, max_position_embeddings: int) -> int:
    """How many tokens the scaling carries the model to: max_position_embeddings, or more where it is said apart.

    llama3 and longrope checkpoints write the scaled length into max_position_embeddings. Those with yarn may
    do so too, and the factor is then relative to original_max_position_embeddings; linear and dynamic ones
    write the unscaled length.
    """
    scaling = rope.scaling
    if isinstance(scaling, YarnScaling):
        reached = scaling.factor * scaling.original_max_position_embeddings
    elif isinstance(scaling, LinearScaling | DynamicScaling):
        settings = read_object(config, "rope_scaling") or read_object(config, "rope_parameters")
        unscaled = read_integer(settings, "original_max_position_embeddings", max_position_embeddings)
        reached = scaling.factor * unscaled
    else:
        return max_position_embeddings
    return max(max_position_embeddings, int(min(reached, LARGEST_INTEGER)))


@dataclass(frozen=True, slots=True)
class _Settings:
    """The scaling's own object `values`, its name in config.json, and what it is relative to."""

    values: Mapping[str, Any]
    name: str
    theta: float
    head_dim: int
    max_position_embeddings: int
    original: int

    @property
    def factor_or_ratio(self) -> float:
        """`factor`, or where it is absent how far the context reaches beyond the original one."""
        return read_number(self.values, "factor", self.max_position_embeddings / self.original)


def _read_kind(settings: Mapping[str, Any], name: str) -> str:
    kind = read_text(settings, "rope_type") or read_text(settings, "type")
    if kind is None:
        if set(settings) - {"rope_theta", "partial_rotary_factor", "rope_type", "type"}:
            raise wrong_field(name, dict(settings), "an object with a 'rope_type'")
        return "default"
    return kind


def _read_linear(settings: _Settings) -> LinearScaling:
    return LinearScaling(read_number(settings.values, "factor"))


def _read_dynamic(settings: _Settings) -> DynamicScaling:
    if settings.head_dim == 2:
        raise InvalidConfig(
            f"config.json asks for dynamic rotary scaling in {settings.name!r}, which has no meaning for heads "
            "that are 2 wide.",
            remedy=_BELONGS,
        )
    return DynamicScaling(read_number(settings.values, "factor"), settings.max_position_embeddings)


def _read_yarn(settings: _Settings) -> YarnScaling:
    values, factor = settings.values, settings.factor_or_ratio
    if settings.theta == 1:
        raise InvalidConfig(
            f"config.json asks for yarn in {settings.name!r} with a 'rope_theta' of 1, where all pairs turn alike.",
            remedy=_BELONGS,
        )
    # Zero counts as absent for these, as in transformers.
    mscale, mscale_all_dim, beta_fast, beta_slow = (
        read_number(values, field, 0.0, zero=True)
        for field in ("mscale", "mscale_all_dim", "beta_fast", "beta_slow")
    )
    if mscale and mscale_all_dim:
        inferred = _yarn_attention(factor, mscale) / _yarn_attention(factor, mscale_all_dim)
    else:
        inferred = _yarn_attention(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=settings.original,
        attention_factor=read_number(values, "attention_factor", inferred),
        beta_fast=beta_fast or 32.0,
        beta_slow=beta_slow or 1.0,
        truncate=read_flag(values, "truncate", True),
    )


def _yarn_attention(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _read_longrope(settings: _Settings) -> LongRopeScaling:
    values, factor, pairs = settings.values, settings.factor_or_ratio, settings.head_dim // 2
    inferred = 1.0
    if factor > 1 and settings.original > 1:
        inferred = math.sqrt(1 + math.log(factor) / math.log(settings.original))
    return LongRopeScaling(
        short_factor=read_numbers(values, "short_factor", pairs),
        long_factor=read_numbers(values, "long_factor", pairs),
        original_max_position_embeddings=settings.original,
        attention_factor=read_number(values, "attention_factor", inferred),
    )


def _read_llama3(settings: _Settings) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=read_number(settings.values, "factor"),
        low_freq_factor=read_number(settings.values, "low_freq_factor"),
        high_freq_factor=read_number(settings.values, "high_freq_factor"),
        original_max_position_embeddings=settings.original,
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise InvalidConfig(
            f"config.json gives {settings.name!r} a high_freq_factor of {scaling.high_freq_factor}, which must be "
            f"above its low_freq_factor of {scaling.low_freq_factor}.",
            remedy=_BELONGS,
        )
    return scaling


_READERS: dict[str, Callable[[_Settings], Scaling]] = {
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
    "llama3": _read_llama3,
}
