"""From a checkpoint's rotary settings to the angle per position of each pair."""

import math

import torch

from headrace.models.decoder.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position: float32 [head_dim / 2] on the CPU, whatever the default device is.

    Where they depend on the sequence's length, these are those of short ones.
    """
    powers = _powers(rope.theta, head_dim)
    match rope.scaling:
        case LinearScaling(factor):
            return 1.0 / powers / factor
        case YarnScaling():
            return _ramp(powers, rope.theta, rope.scaling)
        case LongRopeScaling():
            return 1.0 / (_row(rope.scaling.short_factor) * powers)
        case Llama3Scaling():
            return _stretch(1.0 / powers, rope.scaling)
        case DynamicScaling() | None:
            return 1.0 / powers


def frequencies_by_length(
    rope: RopeConfig, short: torch.Tensor, lengths: torch.Tensor, head_dim: int
) -> torch.Tensor:
    """The frequencies of tokens whose sequences are int64 `lengths` [tokens] long: float32 [tokens, head_dim / 2].

    `short` is what `inverse_frequencies` gave, on the device of `lengths`. For a rope that depends on length.
    """
    match rope.scaling:
        case DynamicScaling(factor, unscaled):
            ratio = factor * lengths.clamp(min=unscaled).double() / unscaled - (factor - 1)
            # torch's pow rounds the elements at a tensor's end differently from the others, so that a token's angles
            # would depend on its neighbours; its exp and log treat all alike.
            base_log = math.log(rope.theta) + ratio.log() * (head_dim / (head_dim - 2))
            exponents = _exponents(head_dim).to(lengths.device)
            return (-base_log.unsqueeze(1) * exponents).exp().float()
        case LongRopeScaling():
            long = 1.0 / (_row(rope.scaling.long_factor) * _powers(rope.theta, head_dim))
            is_long = lengths > rope.scaling.original_max_position_embeddings
            return torch.where(is_long.unsqueeze(1), long.to(short.device), short)
        case _:
            raise AssertionError("these frequencies are the same at every length")


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim


def _powers(theta: float, head_dim: int) -> torch.Tensor:
    powers: torch.Tensor = theta ** _exponents(head_dim)
    return powers


def _row(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _ramp(powers: torch.Tensor, theta: float, scaling: YarnScaling) -> torch.Tensor:
    """YaRN: pairs that turn beta_fast times over the original context are kept, those of beta_slow interpolated."""
    head_dim = 2 * powers.shape[0]

    def pair_that_turns(times: float) -> float:
        turns = scaling.original_max_position_embeddings / (times * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    pairs = torch.arange(powers.shape[0], dtype=torch.float32, device="cpu")
    kept = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _stretch(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain
