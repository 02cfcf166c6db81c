"""The forward pass of a Llama-shaped decoder over one step of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass

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
from headrace.models.decoder.step import StepContext, attend, prepare_step, sequence_lengths


@dataclass(slots=True)
class Passage:
    """A step on its way through the layers.

    Attributes:
        context: what its layers share.
        layers: those that compute so many rows fastest.
        hidden: [rows, hidden_size]; behind the last layer only the rows whose logits are wanted.
        layer: which one is next.
        logits: float32 [wanted, vocab_size], once the step is through.
    """

    batch: ForwardBatch
    context: StepContext
    layers: tuple[LayerParts, ...]
    hidden: torch.Tensor
    layer: int = 0
    logits: torch.Tensor | None = None


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

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """The logits of the wanted rows, float32 [wanted, vocab_size]; writes the step's keys and values to `cache`.

        The caller is in torch.inference_mode, here and below.
        """
        passage = self.begin(batch)
        while passage.logits is None:
            self.advance(passage, cache)
        return passage.logits

    # ---- the same, part by part, so that several steps can go through the layers while later ones are on their way

    def begin(self, batch: ForwardBatch) -> Passage:
        """A step before the first layer. Of the parameters only the embedding's rows of its `input_ids` are read."""
        cos, sin = self._angles(batch)
        context = prepare_step(batch, cos, sin, self._windows, self.arithmetic)
        hidden = functional.embedding(batch.input_ids, self.parameters.embedding)
        return Passage(batch, context, self._layers_for(hidden.shape[0]), hidden)

    def group_of(self, passage: Passage) -> int:
        """The group of parameters that `advance` will read, and no other."""
        return passage.layer if passage.layer < len(passage.layers) else head_group(self.config)

    def advance(self, passage: Passage, cache: KVCache) -> None:
        """Go through the next layer, or behind the last one to the logits. Where none are wanted, the last one is all.

        What a step attends to must have gone through the layer before. It leaves nothing behind but keys and values in
        the step's own slots.
        """
        assert passage.logits is None
        index = passage.layer
        if index < len(passage.layers):
            self._through_layer(passage, index, cache)
            passage.layer += 1
            if index + 1 < len(passage.layers) or passage.hidden.shape[0]:
                return
        passage.logits = self._logits(passage.hidden)

    def _through_layer(self, passage: Passage, index: int, cache: KVCache) -> None:
        layer, context = passage.layers[index], passage.context
        keys, values = cache.keys[index], cache.values[index]
        query = layer.before(passage.hidden, context.cos, context.sin, context.write_slots, keys, values)
        attended = attend(context.attention[self.config.windows[index]], query, keys, values)
        if index + 1 == len(passage.layers):
            # What follows the last attention serves only the logits.
            rows = passage.batch.logit_rows
            attended, passage.hidden = attended[rows], passage.hidden[rows]
        layer.after(attended, passage.hidden)

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
        if not hidden.shape[0]:
            return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
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
