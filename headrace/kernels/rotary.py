"""Rotary position embedding with rotated halves (as in GPT-NeoX and all Llama checkpoints of transformers)."""

import torch


def rotary_table(
    positions: torch.Tensor, inverse_frequencies: torch.Tensor, dtype: torch.dtype, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for one step, computed in float32 and rounded once.

    positions: int64 [tokens]; inverse_frequencies: float32 [head_dim / 2], or [tokens, head_dim / 2] where each
    token has its own; factor: what both are multiplied by.
    Gives cos [tokens, 1, head_dim] (each half the same) and sin [tokens, 1, head_dim / 2].
    """
    angles = positions.float().unsqueeze(1) * inverse_frequencies
    cos, sin = angles.cos(), angles.sin()
    if factor != 1.0:
        cos, sin = cos.mul_(factor), sin.mul_(factor)
    cos, sin = cos.to(dtype), sin.to(dtype)
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), sin.unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Every head of x [tokens, heads, head_dim] turned by its token's angles; gives a new, dense tensor."""
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin, value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin)
    return turned
