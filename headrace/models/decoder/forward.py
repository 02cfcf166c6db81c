"""The forward pass of a Llama-shaped decoder over one step of the engine."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from headrace.kernels.native import parts
from headrace.kernels.norm import rms_norm
from headrace.kernels.rotary import rotary_table
from headrace.models.batch import ForwardBatch, KVCache
from headrace.models.decoder.arithmetic import FASTEST, Arithmetic
from headrace.models.decoder.config import DecoderConfig
from headrace.models.decoder.frequencies import frequencies_by_length, inverse_frequencies
from headrace.models.decoder.layer_parts import LayerParts, native_parts, reference_parts
from headrace.models.decoder.layout import decoder_layout, head_group
from headrace.models.decoder.parameters import arrange, check_parameters
from headrace.models.decoder.step import attend, prepare_step, sequence_lengths
from headrace.models.layout import EMBEDDED_ROWS


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
        layers = self.parameters.layers
        self._reference = tuple(reference_parts(config, layer, arithmetic) for layer in layers)
        self._native: tuple[LayerParts, ...] = ()
        if parts.can_compute(*parameters.values()):
            self._native = tuple(native_parts(config, layer) for layer in layers)

    def forward(
        self, batch: ForwardBatch, cache: KVCache, before_group: Callable[[int], None] | None = None
    ) -> torch.Tensor:
        """The logits of the wanted rows, float32 [wanted, vocab_size]; writes the step's keys and values to `cache`.

        `before_group(g)` is called before anything of parameter group g is read, so that the first steps can
        run while later groups are still on their way; `before_group(EMBEDDED_ROWS)` before the embedding's rows of
        `input_ids` are. What it raises leaves nothing behind but keys and values in the step's own slots. The last
        group is not asked for where no logits are wanted. The caller is in torch.inference_mode.
        """
        reach = before_group or _everything_is_there
        cos, sin = self._angles(batch)
        step = prepare_step(batch, cos, sin, self._windows, self.arithmetic)
        reach(EMBEDDED_ROWS)
        hidden = functional.embedding(batch.input_ids, self.parameters.embedding)
        last = len(self.parameters.layers) - 1
        layers = self._layers_for(hidden.shape[0])
        for index, layer in enumerate(layers):
            reach(index)
            keys, values = cache.keys[index], cache.values[index]
            query = layer.before(hidden, cos, sin, step.write_slots, keys, values)
            attended = attend(step.attention[self.config.windows[index]], query, keys, values)
            if index == last:
                # What follows the last attention serves only the logits.
                attended, hidden = attended[batch.logit_rows], hidden[batch.logit_rows]
            layer.after(attended, hidden)
        if not hidden.shape[0]:
            return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        reach(head_group(self.config))
        return self._logits(hidden)

    @property
    def computed_by(self) -> str:
        """What computes on a CPU, in words."""
        return parts.describe(self.dtype)

    def _layers_for(self, rows: int) -> tuple[LayerParts, ...]:
        """In C++, where there are kernels and they are the ones for so many rows."""
        if self._native and rows <= self.arithmetic.native_rows(self.dtype):
            parts.follow_torch()
            return self._native
        return self._reference

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocab_size] of the last layer's hidden [rows, hidden_size]."""
        norm, head, eps = self.parameters.norm, self.parameters.head, self.config.rms_norm_eps
        if self._native and hidden.shape[0] <= self.arithmetic.native_rows(self.dtype):
            return parts.linear(parts.rms_norm(hidden, norm, eps), head, wide=True)
        return self.arithmetic.linear(rms_norm(hidden, norm, eps), head, None).float()

    def _angles(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step's tokens, as `rotary_table` gives them."""
        rope, frequencies = self.config.rope, self._inverse_frequencies
        if rope.depends_on_length:
            lengths = sequence_lengths(batch)
            frequencies = frequencies_by_length(rope, frequencies, lengths, self.config.head_dim)
        return rotary_table(batch.positions, frequencies, self.dtype, rope.attention_factor)


def _everything_is_there(_group: int) -> None:
    """Stands in for `before_group` once the model is loaded."""
