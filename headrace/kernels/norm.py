"""Root-mean-square norm and the gated activation: what a layer does to each row between its products."""

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Each row divided by its root mean square, times `weight` (Zhang and Sennrich, 2019).

    x: [rows, width], weight: [width], both of the model's dtype. The division is done in float32 and rounded
    to the model's dtype before the weight is applied, as the checkpoints were trained.
    """
    return _normed(x, eps).mul_(weight)


def head_norm(
    x: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor, query_heads: int, eps: float
) -> torch.Tensor:
    """`rms_norm` of each head by itself: the first `query_heads` of x with one weight, the others with another.

    x: [rows, heads, head_dim], query heads before key heads; weights: [head_dim]; gives a new, dense tensor.
    """
    normed = _normed(x, eps)
    normed[:, :query_heads].mul_(query_weight)
    normed[:, query_heads:].mul_(key_weight)
    return normed


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    # float() of a float32 tensor is that tensor itself, and x is not ours to change.
    return wide * scale if wide is x else wide.mul_(scale).to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where gate_up [rows, 2 * width] holds gate and up side by side; gives [rows, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
