"""What a step may compute in more than one way, and the fastest; invariant.py has the other."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from headrace.kernels import attention, linear, norm
from headrace.kernels.native import parts

# query [rows, heads, head_dim], one layer's keys and values → [rows, heads * head_dim]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What may be computed in more than one way.

    Attributes:
        linear: x [rows, in], weight [out, in], bias [out] or None → [rows, out].
        silu_mul: gate and up side by side [rows, 2 * width] → [rows, width].
        native_rows: of a dtype; a step of up to so many rows is left to the kernels in C++, where there are any.
        prefill: the attention of one request's chunk; of its context's slots, the chunk's length, the model's
            dtype and the window.
        decode: the attention of one new token each of some requests; of their slots [rows, longest], their lengths
            [rows], the model's dtype and the window.
    """

    linear: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]
    native_rows: Callable[[torch.dtype], int]
    prefill: Callable[[torch.Tensor, int, torch.dtype, int | None], Attend]
    decode: Callable[[torch.Tensor, torch.Tensor, torch.dtype, int | None], Attend]


def _prefill(slots: torch.Tensor, length: int, dtype: torch.dtype, window: int | None) -> Attend:
    context = attention.prefill_context(slots, length, dtype, window)
    return partial(attention.prefill_attention, context=context)


def _decode(slots: torch.Tensor, lengths: torch.Tensor, dtype: torch.dtype, window: int | None) -> Attend:
    context = attention.decode_context(slots, lengths, dtype, window)
    return partial(attention.decode_attention, context=context)


FASTEST = Arithmetic(linear.linear, norm.silu_mul, parts.faster_rows, _prefill, _decode)
