"""How a family says which checkpoint tensor goes where: data, no torch.

A layout is the list of the model's parameters, each with the checkpoint tensors that fill it. A fused
parameter (qkv, gate and up) is its sources one under another: adjacent blocks of rows, so that each source
is one contiguous byte range of the parameter.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A checkpoint tensor with the shape that the file must hold."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter of the running model.

    Attributes:
        name: its name in the running model, e.g. "layers.0.qkv_proj.weight".
        shape: its shape; sources are stacked along dimension 0 and fill it exactly.
        sources: the checkpoint tensors, in row order.
        group: what must be there together before a step of the forward pass can run; groups are loaded in
            ascending order: 0 is the embedding, 1 + i is decoder layer i, the last holds the final norm and
            an untied head.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[SourceTensor, ...]
    group: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole model.

    Attributes:
        parameters: in load order (ascending group).
        ignored: regular expressions (full match) of checkpoint tensors that may be present and are not read:
            a tied model's lm_head.weight, rotary inv_freq. Any other tensor that no parameter takes is an error.
    """

    parameters: tuple[ParameterSpec, ...]
    ignored: tuple[str, ...] = ()
