"""What all layers of one step share: angles, slots and masks, made once a step and window size.

Where there are kernels for it, one call of theirs attends to all rows of a step. They serve every arithmetic, since a
row's result never depends on the others. Elsewhere torch goes through prompt chunks and groups of decoding requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.kernels.native.parts import follow_torch
from headrace.kernels.native_attention import (
    NativeContext,
    Span,
    fastest_way,
    native_attention,
    native_context,
)
from headrace.models.batch import ForwardBatch
from headrace.models.decoder.arithmetic import Arithmetic, Attend
from headrace.models.decoder.groups import Decodes, attend_decodes, group_decodes


@dataclass(frozen=True, slots=True)
class ReferenceContext:
    """What the layers of one window size attend to, without kernels.

    Attributes:
        prefills: rows and attention of each prompt chunk, in row order.
        decodes: the decoding requests, whose rows are the last ones; None without any.
    """

    prefills: tuple[tuple[slice, Attend], ...]
    decodes: Decodes | None


AttentionContext = NativeContext | ReferenceContext


@dataclass(frozen=True, slots=True)
class StepContext:
    """One step.

    Attributes:
        cos, sin: the rotary angles of its tokens, as `rotary_table` gives them.
        write_slots: int64 [tokens]; where each token's key and value go.
        attention: by window size, None being that of layers that see everything.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    write_slots: torch.Tensor
    attention: dict[int | None, AttentionContext]


def prepare_step(
    batch: ForwardBatch,
    cos: torch.Tensor,
    sin: torch.Tensor,
    windows: Sequence[int | None],
    arithmetic: Arithmetic,
) -> StepContext:
    """`windows` are the different window sizes of the model's layers; cos and sin are of the model's dtype."""
    longest = max([span.context_slots.shape[0] for span in batch.prefills], default=0)
    longest = max(longest, batch.decode_slots.shape[1])
    way = fastest_way(cos.dtype, cos.device)
    spans: list[Span] = []
    if way is not None:
        follow_torch()
        spans = _spans(batch)
    made: dict[int | None, AttentionContext] = {}
    attention: dict[int | None, AttentionContext] = {}
    for window in windows:
        # What reaches over everything is no window.
        effective = window if window is not None and window < longest else None
        if effective not in made:
            made[effective] = (
                _reference_context(batch, arithmetic, cos.dtype, effective)
                if way is None
                else native_context(spans, way, effective)
            )
        attention[window] = made[effective]
    return StepContext(cos, sin, batch.write_slots, attention)


def _spans(batch: ForwardBatch) -> list[Span]:
    spans = [
        Span(span.start, span.length, span.context_slots, span.context_slots.shape[0])
        for span in batch.prefills
    ]
    first = batch.positions.shape[0] - batch.decode_slots.shape[0]
    for row, (slots, length) in enumerate(
        zip(batch.decode_slots, batch.decode_lengths.tolist(), strict=True)
    ):
        spans.append(Span(first + row, 1, slots, length))
    return spans


def _reference_context(
    batch: ForwardBatch, arithmetic: Arithmetic, dtype: torch.dtype, window: int | None
) -> ReferenceContext:
    prefills = tuple(
        (
            slice(span.start, span.start + span.length),
            arithmetic.prefill(span.context_slots, span.length, dtype, window),
        )
        for span in batch.prefills
    )
    return ReferenceContext(prefills, group_decodes(batch, arithmetic, dtype, window))


def sequence_lengths(batch: ForwardBatch) -> torch.Tensor:
    """int64 [tokens]: how long each token's sequence was when its key was made.

    That is the prompt's length for the tokens of a prompt, however it is cut into chunks, and for each later
    token its own place.
    """
    lengths = batch.positions + 1
    for span in batch.prefills:
        whole = span.context_slots.shape[0] if span.prompt_length is None else span.prompt_length
        rows = slice(span.start, span.start + span.length)
        lengths[rows] = lengths[rows].clamp(min=whole)
    return lengths


def attend(
    context: AttentionContext, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """query [tokens, heads, head_dim] over one layer's cache; gives [tokens, heads * head_dim]."""
    if isinstance(context, NativeContext):
        return native_attention(query, keys, values, context)
    parts = [attend_rows(query[rows], keys, values) for rows, attend_rows in context.prefills]
    if context.decodes is not None:
        parts.append(attend_decodes(query[-context.decodes.count :], keys, values, context.decodes))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
