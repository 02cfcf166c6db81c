"""How a checkpoint turns positions into rotary angles, as data. No torch.

rope_fields.py reads it from config.json, frequencies.py computes with it.
"""

from dataclasses import dataclass

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation (Chen et al., 2023): every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware scaling whose base grows with the sequence beyond the context of the training.

    Attributes:
        factor: how fast it grows.
        max_position_embeddings: up to this length, in tokens, nothing is scaled.
    """

    factor: float
    max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): slow frequencies interpolated, fast ones kept, a ramp between.

    Attributes:
        factor: what the slow frequencies are divided by.
        original_max_position_embeddings: context length in tokens before the scaling.
        attention_factor: what cosines and sines are multiplied by.
        beta_fast, beta_slow: turns over the original context at which the ramp begins and ends.
        truncate: the ramp begins and ends at whole pairs.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): a divisor of its own for each pair, another set for long sequences.

    Attributes:
        short_factor, long_factor: divisors up to and beyond the original context, head_dim / 2 of each.
        original_max_position_embeddings: in tokens.
        attention_factor: what cosines and sines are multiplied by, at any length.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the slow frequencies (llama-models, `apply_scaling`).

    Attributes:
        factor: what wavelengths longer than original / low_freq_factor are multiplied by.
        low_freq_factor, high_freq_factor: between original / high and original / low the stretching fades in.
        original_max_position_embeddings: context length in tokens before the stretching.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


Scaling = LinearScaling | DynamicScaling | YarnScaling | LongRopeScaling | Llama3Scaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding over the whole head (Su et al., RoFormer), halves rotated as in GPT-NeoX.

    Attributes:
        theta: base of the geometric row of frequencies.
        scaling: what is done to them for contexts longer than those of the training, if anything.
    """

    theta: float = DEFAULT_THETA
    scaling: Scaling | None = None

    @property
    def depends_on_length(self) -> bool:
        """A token's angles depend on how long its sequence is, not on its position alone.

        Keys of such a model that lie beyond the unscaled context cannot be shared between requests.
        """
        return isinstance(self.scaling, DynamicScaling | LongRopeScaling)

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        if isinstance(self.scaling, YarnScaling | LongRopeScaling):
            return self.scaling.attention_factor
        return 1.0
