"""How a checkpoint turns positions into rotary angles, as data. No torch.

Reads the three spellings in use: `rope_scaling` with `rope_type`, `rope_scaling` with the older `type`, and
the `rope_parameters` of transformers 5, which hold the base frequency too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.models.decoder.fields import read_integer, read_number, read_object, read_text, wrong_field
from headrace.models.errors import InvalidConfig, UnsupportedModel

RopeKind = Literal["default", "llama3"]
SUPPORTED_KINDS: tuple[RopeKind, ...] = ("default", "llama3")
DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the slow frequencies (llama-models, `apply_scaling`).

    Attributes:
        factor: what wavelengths longer than original / low_freq_factor are multiplied by.
        low_freq_factor, high_freq_factor: between original / high and original / low the stretching fades in.
        original_max_position_embeddings: context length in tokens before the stretching.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding over the whole head (Su et al., RoFormer), halves rotated as in GPT-NeoX.

    Attributes:
        theta: base of the geometric row of frequencies.
        kind: which scaling; "llama3" has its numbers in `llama3`.
    """

    theta: float = DEFAULT_THETA
    kind: RopeKind = "default"
    llama3: Llama3Scaling | None = None


def read_rope(config: Mapping[str, Any], max_position_embeddings: int) -> RopeConfig:
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
        return RopeConfig(theta=theta)
    return RopeConfig(
        theta=theta, kind="llama3", llama3=_read_llama3(settings, name, max_position_embeddings)
    )


def _read_kind(settings: Mapping[str, Any], name: str) -> RopeKind:
    kind = read_text(settings, "rope_type") or read_text(settings, "type")
    if kind is None:
        if set(settings) - {"rope_theta", "partial_rotary_factor", "rope_type", "type"}:
            raise wrong_field(name, dict(settings), "an object with a 'rope_type'")
        return "default"
    for supported in SUPPORTED_KINDS:
        if kind == supported:
            return supported
    raise UnsupportedModel(
        f"config.json asks for the rotary scaling {kind!r} in {name!r}, which Headrace does not compute.",
        remedy=f"Supported: {', '.join(SUPPORTED_KINDS)}.",
    )


def _read_llama3(settings: Mapping[str, Any], name: str, max_position_embeddings: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=read_number(settings, "factor"),
        low_freq_factor=read_number(settings, "low_freq_factor"),
        high_freq_factor=read_number(settings, "high_freq_factor"),
        original_max_position_embeddings=read_integer(
            settings, "original_max_position_embeddings", max_position_embeddings
        ),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise InvalidConfig(
            f"config.json gives {name!r} a high_freq_factor of {scaling.high_freq_factor}, which must be above "
            f"its low_freq_factor of {scaling.low_freq_factor}.",
            remedy="Take the config.json that belongs to these weights.",
        )
    return scaling
