"""From a checkpoint's rotary settings to the angle per position of each pair."""

import math

import torch

from headrace.models.decoder.rope import Llama3Scaling, RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position: float32 [head_dim / 2] on the CPU, whatever the default device is."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / rope.theta**exponents
    return plain if rope.llama3 is None else _stretch(plain, rope.llama3)


def _stretch(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain
