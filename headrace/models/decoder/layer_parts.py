"""A layer in two parts, before its attention and after it: in C++ where there are kernels, else in torch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.kernels.native import parts
from headrace.kernels.norm import head_norm, rms_norm
from headrace.kernels.rotary import rotate
from headrace.models.decoder.arithmetic import Arithmetic
from headrace.models.decoder.config import DecoderConfig
from headrace.models.decoder.parameters import LayerParameters

# hidden [tokens, hidden_size], cos, sin, write_slots [tokens], one layer's keys and values → the queries
# [tokens, heads, head_dim]; writes the tokens' keys and values.
Before = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor
]
# attended [tokens, heads * head_dim]; adds to hidden [tokens, hidden_size]
After = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Around a layer's attention."""

    before: Before
    after: After


def native_parts(config: DecoderConfig, layer: LayerParameters) -> LayerParts:
    """In C++, where `parts.can_compute` the layer's parameters. A row's bits are its own."""
    eps = config.rms_norm_eps
    return LayerParts(
        parts.BeforeAttention(
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            eps=eps,
            norm=layer.input_norm,
            qkv=layer.qkv.weight,
            qkv_bias=layer.qkv.bias,
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
        ),
        parts.AfterAttention(
            eps=eps,
            output=layer.output.weight,
            output_bias=layer.output.bias,
            norm=layer.post_attention_norm,
            gate_up=layer.gate_up.weight,
            gate_up_bias=layer.gate_up.bias,
            down=layer.down.weight,
            down_bias=layer.down.bias,
        ),
    )


def reference_parts(config: DecoderConfig, layer: LayerParameters, arithmetic: Arithmetic) -> LayerParts:
    """In torch."""
    eps = config.rms_norm_eps
    linear = arithmetic.linear

    def before(
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        write_slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        qkv = linear(rms_norm(hidden, layer.input_norm, eps), layer.qkv.weight, layer.qkv.bias)
        qkv = qkv.view(hidden.shape[0], -1, config.head_dim)
        turning = config.num_heads + config.num_kv_heads
        # q and k lie side by side and are turned in one go.
        unturned = qkv[:, :turning]
        if layer.query_norm is not None and layer.key_norm is not None:
            unturned = head_norm(unturned, layer.query_norm, layer.key_norm, config.num_heads, eps)
        turned = rotate(unturned, cos, sin)
        query, key = turned[:, : config.num_heads], turned[:, config.num_heads :]
        keys.index_copy_(0, write_slots, key)
        values.index_copy_(0, write_slots, qkv[:, turning:])
        return query

    def after(attended: torch.Tensor, hidden: torch.Tensor) -> None:
        hidden.add_(linear(attended, layer.output.weight, layer.output.bias))
        normed = rms_norm(hidden, layer.post_attention_norm, eps)
        gated = arithmetic.silu_mul(linear(normed, layer.gate_up.weight, layer.gate_up.bias))
        hidden.add_(linear(gated, layer.down.weight, layer.down.bias))

    return LayerParts(before, after)
