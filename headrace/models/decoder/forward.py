"""The forward pass of a Llama-shaped decoder over one step of the engine."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from headrace.kernels.norm import head_norm, rms_norm
from headrace.kernels.rotary import rotary_table, rotate
from headrace.models.batch import ForwardBatch, KVCache
from headrace.models.decoder.arithmetic import FASTEST, Arithmetic
from headrace.models.decoder.config import DecoderConfig
from headrace.models.decoder.frequencies import frequencies_by_length, inverse_frequencies
from headrace.models.decoder.layout import decoder_layout
from headrace.models.decoder.parameters import LayerParameters, Linear, arrange, check_parameters
from headrace.models.decoder.step import StepContext, attend, prepare_step, sequence_lengths


class DecoderModel:
    """A model around parameters that may still be filling; it owns no memory but the rotary frequencies."""

    def __init__(
        self,
        config: DecoderConfig,
        parameters: Mapping[str, torch.Tensor],
        arithmetic: Arithmetic = FASTEST,
    ) -> None:
        """`parameters` by the names of the layout; they are kept as they are, and no value is read yet.

        All are of one dtype and on one device, which are the model's. Raises MissingParameter.
        """
        check_parameters(decoder_layout(config), parameters)
        self.config = config
        self.parameters = arrange(config, parameters)
        self.arithmetic = arithmetic
        self.dtype = self.parameters.embedding.dtype
        self.device = self.parameters.embedding.device
        self._inverse_frequencies = inverse_frequencies(config.rope, config.head_dim).to(self.device)
        self._windows = tuple(dict.fromkeys(config.windows))

    def forward(
        self, batch: ForwardBatch, cache: KVCache, before_group: Callable[[int], None] | None = None
    ) -> torch.Tensor:
        """The logits of the wanted rows, float32 [wanted, vocab_size]; writes the step's keys and values to `cache`.

        `before_group(g)` is called before anything of parameter group g is read, so that the first steps can
        run while later groups are still on their way. The caller is in torch.inference_mode.
        """
        reach = before_group or _everything_is_there
        cos, sin = self._angles(batch)
        step = prepare_step(batch, cos, sin, self._windows, self.arithmetic)
        reach(0)
        hidden = functional.embedding(batch.input_ids, self.parameters.embedding)
        last = len(self.parameters.layers) - 1
        for index, layer in enumerate(self.parameters.layers):
            reach(index + 1)
            attended = self._attend(layer, hidden, cache.keys[index], cache.values[index], step, index)
            if index == last:
                # What follows the last attention serves only the logits.
                attended, hidden = attended[batch.logit_rows], hidden[batch.logit_rows]
            hidden.add_(self._linear(attended, layer.output))
            hidden.add_(self._mlp(layer, hidden))
        reach(last + 2)
        hidden = rms_norm(hidden, self.parameters.norm, self.config.rms_norm_eps)
        return self.arithmetic.linear(hidden, self.parameters.head, None).float()

    def _attend(
        self,
        layer: LayerParameters,
        hidden: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepContext,
        index: int,
    ) -> torch.Tensor:
        """Attention of one layer before its output projection: [tokens, heads * head_dim]."""
        config = self.config
        normed = rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        qkv = self._linear(normed, layer.qkv)
        qkv = qkv.view(hidden.shape[0], -1, config.head_dim)
        turning = config.num_heads + config.num_kv_heads
        # q and k lie side by side and are turned in one go.
        unturned = qkv[:, :turning]
        if layer.query_norm is not None and layer.key_norm is not None:
            unturned = head_norm(
                unturned, layer.query_norm, layer.key_norm, config.num_heads, config.rms_norm_eps
            )
        turned = rotate(unturned, step.cos, step.sin)
        query, key = turned[:, : config.num_heads], turned[:, config.num_heads :]
        keys.index_copy_(0, step.write_slots, key)
        values.index_copy_(0, step.write_slots, qkv[:, turning:])
        return attend(step.attention[config.windows[index]], query, keys, values)

    def _angles(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step's tokens, as `rotary_table` gives them."""
        rope, frequencies = self.config.rope, self._inverse_frequencies
        if rope.depends_on_length:
            lengths = sequence_lengths(batch)
            frequencies = frequencies_by_length(rope, frequencies, lengths, self.config.head_dim)
        return rotary_table(batch.positions, frequencies, self.dtype, rope.attention_factor)

    def _mlp(self, layer: LayerParameters, hidden: torch.Tensor) -> torch.Tensor:
        normed = rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
        gated = self.arithmetic.silu_mul(self._linear(normed, layer.gate_up))
        return self._linear(gated, layer.down)

    def _linear(self, x: torch.Tensor, layer: Linear) -> torch.Tensor:
        return self.arithmetic.linear(x, layer.weight, layer.bias)


def _everything_is_there(_group: int) -> None:
    """Stands in for `before_group` once the model is loaded."""
