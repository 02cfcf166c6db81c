"""Attention in C++: all rows of a step in one call, over slots read in place. attention.py is its reference.

A row's result has the same bits in any chunk, company or number of threads. Which instructions compute it depends on
the machine: bfloat16 products in AMX's tiles with weights rounded to bfloat16, or float32 throughout.
"""

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from headrace.kernels.native.library import library

_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class Way(IntEnum):
    """How the products are computed, slowest first; all but AMX in float32."""

    GENERIC = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3


class _Call(ctypes.Structure):
    """HeadraceAttention of attention.h."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
        ("span_count", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class Span:
    """The last `length` tokens of a request: rows from `row` on.

    Attributes:
        slots: int64 [context] or more; where the request's keys and values lie, in order.
        context: tokens of the request so far, these included.
    """

    row: int
    length: int
    slots: torch.Tensor
    context: int


@dataclass(frozen=True, slots=True)
class NativeContext:
    """What a step's layers of one window size attend to.

    Attributes:
        spans: HeadraceAttentionSpan of attention.h, one after another.
        slots: what these point to.
        window: as many keys as each token sees, its own included; 0 for all.
    """

    spans: "array[int]"
    slots: tuple[torch.Tensor, ...]
    window: int
    way: Way


def fastest_way(dtype: torch.dtype, device: torch.device) -> Way | None:
    """The way that `native_attention` takes for a cache of this dtype; None if the reference must do."""
    built = library()
    if built is None or device.type != "cpu" or dtype not in _TYPES:
        return None
    return Way(built.headrace_attention_fastest(_TYPES[dtype]))


def native_context(spans: Sequence[Span], way: Way, window: int | None = None) -> NativeContext:
    """For requests whose rows no other has, in the fastest way for the cache's dtype or a slower one."""
    slots = tuple(span.slots if span.slots.stride(0) == 1 else span.slots.contiguous() for span in spans)
    packed = array("q")
    for span, own in zip(spans, slots, strict=True):
        assert own.dtype == torch.int64 and 0 < span.length <= span.context <= own.shape[0]
        packed.extend((span.row, span.length, span.context, own.data_ptr()))
    return NativeContext(packed, slots, window or 0, way)


def native_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: NativeContext
) -> torch.Tensor:
    """query [rows, heads, head_dim] over one layer's cache [slots, kv_heads, head_dim]; [rows, heads * head_dim].

    The rows' own keys and values are in the cache already. All are of the one dtype that the context was made for.
    """
    built = library()
    assert built is not None and query.dtype == keys.dtype == values.dtype
    assert keys.is_contiguous() and values.is_contiguous()
    if query.stride(2) != 1 or query.stride(1) != query.shape[2]:
        query = query.contiguous()
    rows, heads, head_dim = query.shape
    out = query.new_empty(rows, heads * head_dim)
    call = _Call(
        query.data_ptr(),
        query.stride(0),
        keys.data_ptr(),
        values.data_ptr(),
        out.data_ptr(),
        context.spans.buffer_info()[0],
        len(context.slots),
        heads,
        keys.shape[1],
        head_dim,
        context.window,
        head_dim**-0.5,
    )
    built.headrace_attention(context.way, _TYPES[query.dtype], ctypes.byref(call))
    return out
