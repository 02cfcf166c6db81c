"""Attention over the slot-indexed KV cache: PyTorch reference.

A context is what all layers of a step share (which slots, which mask), made once; the attention functions
then read one layer's cache, [slots, kv_heads, head_dim]. On the CPU, query heads that share a key/value head
are put on an axis of their own, so that keys and values are never repeated: scaled_dot_product_attention with
enable_gqa repeats them and takes eight times as long when decoding.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class PrefillContext:
    """One request's chunk of `length` tokens, which are the last of its context.

    Attributes:
        slots: where the context's keys and values lie, in order: int64 [context], or a slice where they are
            neighbours (then reading them copies nothing).
        length: rows of the chunk.
        causal: the chunk is the whole context, and each token sees those up to itself.
        mask: [length, context] to be added to the scores; None where `causal` says it, or where a chunk of one
            token sees everything.
    """

    slots: torch.Tensor | slice
    length: int
    causal: bool
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """One new token each of `rows` requests.

    Attributes:
        slots: int64 [rows * longest], request after request, or a slice where one request's are neighbours.
        mask: [rows, 1, 1, longest] to be added to the scores; None for a single request, which has no padding.
    """

    slots: torch.Tensor | slice
    rows: int
    longest: int
    mask: torch.Tensor | None


def prefill_context(
    slots: torch.Tensor, length: int, dtype: torch.dtype, window: int | None = None
) -> PrefillContext:
    """For the last `length` tokens of a context in `slots`, int64 [context].

    With a `window`, each token sees that many, itself included; what no token sees is left out.
    """
    if window is not None:
        slots = slots[-min(slots.shape[0], length + window - 1) :]
    context = slots.shape[0]
    earlier = context - length
    is_narrow = window is not None and window < context
    causal = 1 < length == context and not is_narrow
    mask = None
    if length > 1 and not causal:
        allowed = torch.ones(length, context, dtype=torch.bool, device=slots.device).tril_(earlier)
        if window is not None:
            allowed = allowed.triu_(earlier - window + 1)
        mask = _additive(allowed, dtype)
    return PrefillContext(_neighbours(slots), length, causal=causal, mask=mask)


def decode_context(
    slots: torch.Tensor, lengths: torch.Tensor, dtype: torch.dtype, window: int | None = None
) -> DecodeContext:
    """For requests whose contexts are the first `lengths` [rows] of each row of slots, int64 [rows, longest].

    With a `window`, only the last so many of each are seen. `longest` is the greatest of `lengths`.
    """
    if window is not None and window < slots.shape[1]:
        first = (lengths - window).clamp_(min=0).unsqueeze(1)
        slots = slots.gather(1, first + torch.arange(window, device=slots.device))
    rows, longest = slots.shape
    if rows == 1:
        # The longest row has no padding.
        return DecodeContext(_neighbours(slots[0]), 1, longest, mask=None)
    counted = torch.arange(longest, device=slots.device) < lengths.unsqueeze(1)
    # Padding reads the request's own first token: its weight is 0, but 0 times another's infinity would be NaN.
    own = torch.where(counted, slots, slots[:, :1])
    return DecodeContext(own.reshape(-1), rows, longest, _additive(counted, dtype)[:, None, None, :])


def prefill_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: PrefillContext
) -> torch.Tensor:
    """query [length, heads, head_dim] over one layer's cache; gives [length, heads * head_dim].

    The chunk's own keys and values are in the cache already.
    """
    kv_heads, head_dim = keys.shape[1:]
    shared = query.shape[1] // kv_heads
    # [kv_heads, shared, length, head_dim] against keys that are the same (stride 0) along `shared`.
    grouped = query.view(-1, kv_heads, shared, head_dim).permute(1, 2, 0, 3)
    key = _read(keys, context.slots).transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1)
    value = _read(values, context.slots).transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1)
    attended = functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=context.mask, is_causal=context.causal
    )
    return attended.permute(2, 0, 1, 3).reshape(query.shape[0], -1)


def decode_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: DecodeContext
) -> torch.Tensor:
    """query [rows, heads, head_dim] over one layer's cache; gives [rows, heads * head_dim].

    The new tokens' own keys and values are in the cache already.
    """
    kv_heads, head_dim = keys.shape[1:]
    # [rows, kv_heads, shared, head_dim]: the heads that share a key stand where a sequence would.
    grouped = query.view(context.rows, kv_heads, -1, head_dim)
    paged = (context.rows, context.longest, kv_heads, head_dim)
    key = _read(keys, context.slots).view(paged).transpose(1, 2)
    value = _read(values, context.slots).view(paged).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=context.mask)
    return attended.reshape(context.rows, -1)


def _read(cache: torch.Tensor, slots: torch.Tensor | slice) -> torch.Tensor:
    return cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)


def _neighbours(slots: torch.Tensor) -> torch.Tensor | slice:
    """`slots` as a slice, if they are consecutive and looking at them is free (on a GPU it would wait)."""
    if slots.device.type != "cpu":
        return slots
    first, count = int(slots[0]), slots.shape[0]
    if int(slots[-1]) - first != count - 1 or not bool((slots.diff() == 1).all()):
        return slots
    return slice(first, first + count)


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where allowed, minus infinity elsewhere. A boolean mask would be turned into this once a layer."""
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, float("-inf"))
