"""What all layers of one step share: angles, slots and masks, made once a step."""

from dataclasses import dataclass

import torch

from headrace.kernels.attention import (
    DecodeContext,
    PrefillContext,
    decode_attention,
    decode_context,
    prefill_attention,
    prefill_context,
)
from headrace.kernels.rotary import rotary_table
from headrace.models.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class StepContext:
    """One step.

    Attributes:
        cos, sin: the rotary angles of its tokens, as `rotary_table` gives them.
        write_slots: int64 [tokens]; where each token's key and value go.
        prefills: rows and context of each prompt chunk, in row order.
        decodes: context of the decoding requests, whose rows are the last ones; None without any.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    write_slots: torch.Tensor
    prefills: tuple[tuple[slice, PrefillContext], ...]
    decodes: DecodeContext | None


def prepare_step(batch: ForwardBatch, inverse_frequencies: torch.Tensor, dtype: torch.dtype) -> StepContext:
    """`dtype` is the model's; `inverse_frequencies` float32 [head_dim / 2] on the batch's device."""
    cos, sin = rotary_table(batch.positions, inverse_frequencies, dtype)
    prefills = tuple(
        (
            slice(span.start, span.start + span.length),
            prefill_context(span.context_slots, span.length, dtype),
        )
        for span in batch.prefills
    )
    decodes = None
    if batch.decode_slots.shape[0]:
        decodes = decode_context(batch.decode_slots, batch.decode_lengths, dtype)
    return StepContext(cos, sin, batch.write_slots, prefills, decodes)


def attend(step: StepContext, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [tokens, heads, head_dim] over one layer's cache; gives [tokens, heads * head_dim]."""
    parts = [prefill_attention(query[rows], keys, values, context) for rows, context in step.prefills]
    if step.decodes is not None:
        parts.append(decode_attention(query[-step.decodes.rows :], keys, values, step.decodes))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
