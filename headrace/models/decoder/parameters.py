"""A decoder's tensors, sorted from one mapping into the places where the forward pass uses them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from headrace.models.decoder.config import DecoderConfig
from headrace.models.decoder.layout import EMBEDDING
from headrace.models.errors import MissingParameter
from headrace.models.layout import Layout


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in] and, where the layout has one, bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One decoder layer, in order of use; query_norm and key_norm [head_dim] are None where the family has none."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderParameters:
    """The whole model; with a tied head, `head` is `embedding`."""

    embedding: torch.Tensor
    layers: tuple[LayerParameters, ...]
    norm: torch.Tensor
    head: torch.Tensor


def check_parameters(layout: Layout, parameters: Mapping[str, torch.Tensor]) -> None:
    """Raises MissingParameter unless every tensor of the layout is there, in its shape and all of one dtype."""
    dtype = None
    for spec in layout.parameters:
        tensor = parameters.get(spec.name)
        if tensor is None:
            raise MissingParameter(f"The parameter {spec.name!r} was not loaded.")
        if tuple(tensor.shape) != spec.shape:
            raise MissingParameter(
                f"The parameter {spec.name!r} has the shape {tuple(tensor.shape)} instead of {spec.shape}."
            )
        dtype = dtype or tensor.dtype
        if tensor.dtype is not dtype:
            raise MissingParameter(f"The parameter {spec.name!r} is {tensor.dtype}, but others are {dtype}.")


def arrange(config: DecoderConfig, parameters: Mapping[str, torch.Tensor]) -> DecoderParameters:
    """The same tensors, not copied, where `check_parameters` found nothing missing."""
    embedding = parameters[EMBEDDING]
    return DecoderParameters(
        embedding=embedding,
        layers=tuple(_layer(f"layers.{index}", parameters) for index in range(config.num_layers)),
        norm=parameters["norm.weight"],
        head=embedding if config.tie_word_embeddings else parameters["lm_head.weight"],
    )


def _layer(name: str, parameters: Mapping[str, torch.Tensor]) -> LayerParameters:
    def linear(part: str) -> Linear:
        return Linear(parameters[f"{name}.{part}.weight"], parameters.get(f"{name}.{part}.bias"))

    return LayerParameters(
        input_norm=parameters[f"{name}.input_layernorm.weight"],
        qkv=linear("qkv_proj"),
        query_norm=parameters.get(f"{name}.q_norm.weight"),
        key_norm=parameters.get(f"{name}.k_norm.weight"),
        output=linear("o_proj"),
        post_attention_norm=parameters[f"{name}.post_attention_layernorm.weight"],
        gate_up=linear("gate_up_proj"),
        down=linear("down_proj"),
    )
