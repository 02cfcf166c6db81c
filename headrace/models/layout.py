"""How a family says which checkpoint tensor goes where: data, no torch.

A layout is the list of the model's parameters, each with the checkpoint tensors that fill it. A fused
parameter (qkv, gate and up) is its sources one under another: adjacent blocks of rows, so that each source
is one contiguous byte range of the parameter.
"""

from dataclasses import dataclass

# What a forward pass asks for, in place of a group, before it looks up its tokens' rows of the embedding.
EMBEDDED_ROWS = -1


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
        group: what must be there together before a part of the forward pass can run; groups are loaded in
            ascending order, but for rows of the embedding that a prompt waits for. i is decoder layer i, the last
            holds the final norm and the head. The embedding's table is in the last group too where it is the head,
            and in a group of its own before that where it is not: a step needs but the rows of its tokens.
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
        embedding: the name of the parameter of which a step needs only its tokens' rows, unless it is the head too.
        ignored: regular expressions (full match) of checkpoint tensors that may be present and are not read:
            a tied model's lm_head.weight, rotary inv_freq. Any other tensor that no parameter takes is an error.
    """

    parameters: tuple[ParameterSpec, ...]
    embedding: str
    ignored: tuple[str, ...] = ()
