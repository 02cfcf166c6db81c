"""The way of computing a step in which a token's bits depend on its own request's tokens and on nothing else."""

from functools import partial

import torch

from headrace.kernels import row_invariant, tiled_attention
from headrace.kernels.native import parts
from headrace.models.decoder.arithmetic import Arithmetic, Attend


def _prefill(slots: torch.Tensor, length: int, _dtype: torch.dtype, window: int | None) -> Attend:
    context = tiled_attention.tiled_prefill(slots, length, window)
    return partial(tiled_attention.tiled_prefill_attention, context=context)


def _decode(slots: torch.Tensor, lengths: torch.Tensor, _dtype: torch.dtype, window: int | None) -> Attend:
    context = tiled_attention.tiled_decode(slots, lengths, window)
    return partial(tiled_attention.tiled_decode_attention, context=context)


ROW_INVARIANT = Arithmetic(row_invariant.linear, row_invariant.silu_mul, parts.all_rows, _prefill, _decode)
