"""From the architecture that config.json names to the family's folder. No torch at module level."""

import importlib
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.models.decoder.config import DecoderConfig, as_held
from headrace.models.errors import UnsupportedModel
from headrace.models.layout import Layout

if TYPE_CHECKING:
    from headrace.models.decoder.forward import DecoderModel

__all__ = ["FAMILIES", "UnsupportedModel", "family_of", "forward_class", "layout_of", "read_config"]

# config.json "architectures"[0] → folder under headrace/models
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def family_of(config: Mapping[str, Any]) -> str:
    """The family's folder name for a parsed config.json. Raises UnsupportedModel, which lists what is supported."""
    named = config.get("architectures") or []
    architectures = named if isinstance(named, list) else [named]
    for name in architectures:
        if isinstance(name, str) and name in FAMILIES:
            return FAMILIES[name]
    raise UnsupportedModel(
        f"config.json names the architecture {', '.join(map(str, architectures)) or '(none)'}, "
        "which Headrace does not run.",
        remedy=f"Supported: {', '.join(FAMILIES)}.",
    )


def read_config(config: Mapping[str, Any], held: Collection[str] | None = None) -> DecoderConfig:
    """The family's reading of config.json. Raises UnsupportedModel for options that are not computed.

    `held` are the names of the checkpoint's tensors, where they are known: they decide about a tied head.
    """
    read: DecoderConfig = _layout_module(config).read_config(config)
    return read if held is None else as_held(read, held)


def layout_of(config: Mapping[str, Any], held: Collection[str] | None = None) -> Layout:
    """The checkpoint layout for a parsed config.json; `held` as for `read_config`."""
    result: Layout = _layout_module(config).layout(read_config(config, held))
    return result


def forward_class(config: Mapping[str, Any]) -> "type[DecoderModel]":
    """The family's forward pass; imports torch."""
    module = importlib.import_module(f"headrace.models.{family_of(config)}.forward")
    result: type[DecoderModel] = module.Model
    return result


def _layout_module(config: Mapping[str, Any]) -> ModuleType:
    return importlib.import_module(f"headrace.models.{family_of(config)}.layout")
