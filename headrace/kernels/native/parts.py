"""The C++ kernels as functions of tensors. Whoever calls them asks `can_compute` first."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from headrace.kernels.native.library import kernels, library

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}

# Up to so many rows these kernels are faster than torch's products, by instruction set. With many rows oneDNN wins
# where it has better instructions, or the time to rearrange the weights for the same ones.
_FASTER_ROWS = {"amx_bf16": sys.maxsize, "avx512_bf16": 32, "avx2": 8, "generic": 4}

_POINTER, _COUNT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class _Before(ctypes.Structure):
    """HeadraceBefore in parts.h."""

    _fields_ = (
        *((name, _COUNT) for name in ("hidden_size", "heads", "kv_heads", "head_dim")),
        *((name, _POINTER) for name in ("norm", "qkv", "qkv_bias", "query_norm", "key_norm")),
        ("eps", ctypes.c_float),
    )


class _After(ctypes.Structure):
    """HeadraceAfter in parts.h."""

    _fields_ = (
        *((name, _COUNT) for name in ("hidden_size", "attended_size", "intermediate_size")),
        *((name, _POINTER) for name in ("output", "output_bias", "norm")),
        *((name, _POINTER) for name in ("gate_up", "gate_up_bias", "down", "down_bias")),
        ("eps", ctypes.c_float),
    )


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "headrace_linear": (_INT, _POINTER, _COUNT, _COUNT, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _INT),
    "headrace_rms_norm": (_INT, _POINTER, _COUNT, _COUNT, _COUNT, _POINTER, ctypes.c_float, _POINTER),
    "headrace_before_attention": (_INT, _POINTER, _POINTER, _COUNT, *[_POINTER] * 6),
    "headrace_after_attention": (_INT, _POINTER, _POINTER, _COUNT, _COUNT, _POINTER),
    "headrace_set_threads": (_INT,),
}


@cache
def _function(name: str) -> Callable[..., None]:
    loaded = library()
    assert loaded is not None, "can_compute was not asked"
    function = getattr(loaded, name)
    function.argtypes, function.restype = _ARGUMENTS[name], None
    return function  # type: ignore[no-any-return]


def can_compute(*tensors: torch.Tensor | None) -> bool:
    """Whether there are kernels for these: on the CPU, all of one dtype that they know, dense. None is left out."""
    there = [tensor for tensor in tensors if tensor is not None]
    dtype = there[0].dtype
    return (
        library() is not None
        and dtype in _DTYPES
        and all(each.dtype is dtype and each.is_contiguous() and each.device.type == "cpu" for each in there)
    )


def faster_rows(dtype: torch.dtype) -> int:
    """Up to how many rows these kernels are faster than torch."""
    return _FASTER_ROWS[instruction_set(dtype)]


def all_rows(_dtype: torch.dtype) -> int:
    """As `faster_rows`, for those who want one kernel whatever it costs."""
    return sys.maxsize


def follow_torch() -> None:
    """Compute on as many threads as torch does."""
    _function("headrace_set_threads")(torch.get_num_threads())


def describe(dtype: torch.dtype) -> str:
    """What computes a model of this dtype on the CPU, for a log line."""
    found = kernels()
    if found.library is not None and dtype in _DTYPES:
        return f"kernels in C++ for {instruction_set(dtype)}"
    if found.why_not:
        return f"PyTorch's own kernels, which are slower: those in C++ are not there ({found.why_not})"
    return "PyTorch's own kernels"


def instruction_set(dtype: torch.dtype) -> str:
    """The name of the one that computes a dtype."""
    loaded = library()
    assert loaded is not None, "can_compute was not asked"
    loaded.headrace_in_use.restype = ctypes.c_char_p
    name: bytes = loaded.headrace_in_use(_DTYPES[dtype])
    return name.decode()


def use_instruction_set(name: str) -> bool:
    """Compute with it from now on, for tests and measurements; False where this machine lacks it."""
    loaded = library()
    return loaded is not None and bool(loaded.headrace_use(name.encode()))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, wide: bool = False
) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]; gives [rows, out] in x's dtype, or in float32
    where it is to be `wide`. Each row's bits are its own, whatever rows stand beside it."""
    x = _with_dense_rows(x)
    (rows, width), outputs = x.shape, weight.shape[0]
    y = torch.empty((rows, outputs), dtype=torch.float32 if wide else x.dtype)
    _function("headrace_linear")(
        _DTYPES[x.dtype], x.data_ptr(), x.stride(0), rows, width, outputs, weight.data_ptr(), _pointer(bias),
        y.data_ptr(), wide,
    )  # fmt: skip
    return y


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As headrace.kernels.norm.rms_norm."""
    x = _with_dense_rows(x)
    rows, width = x.shape
    y = torch.empty((rows, width), dtype=x.dtype)
    _function("headrace_rms_norm")(
        _DTYPES[x.dtype], x.data_ptr(), x.stride(0), rows, width, weight.data_ptr(), eps, y.data_ptr()
    )
    return y


class BeforeAttention:
    """A layer up to its attention: norm, q k v, their norms and their turning, k and v into the cache."""

    def __init__(
        self,
        *,
        heads: int,
        kv_heads: int,
        eps: float,
        norm: torch.Tensor,
        qkv: torch.Tensor,
        qkv_bias: torch.Tensor | None,
        query_norm: torch.Tensor | None,
        key_norm: torch.Tensor | None,
    ) -> None:
        outputs, hidden_size = qkv.shape
        self._tensors = norm, qkv, qkv_bias, query_norm, key_norm
        self._shape = heads, outputs // (heads + 2 * kv_heads)
        self._layer = _Before(
            hidden_size, heads, kv_heads, self._shape[1], *map(_pointer, self._tensors), eps
        )
        self._dtype = _DTYPES[norm.dtype]
        self._address = ctypes.addressof(self._layer)
        self._call = _function("headrace_before_attention")

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        write_slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """hidden [rows, hidden_size], dense; cos and sin as `rotary_table` gives them; write_slots int64 [rows] of
        keys and values [slots, kv_heads, head_dim]. Gives the queries [rows, heads, head_dim]."""
        rows = hidden.shape[0]
        query = torch.empty((rows, *self._shape), dtype=hidden.dtype)
        self._call(
            self._dtype, self._address, hidden.data_ptr(), rows, cos.data_ptr(), sin.data_ptr(),
            write_slots.data_ptr(), keys.data_ptr(), values.data_ptr(), query.data_ptr(),
        )  # fmt: skip
        return query


class AfterAttention:
    """A layer from its attention on: output projection and gated MLP, each added to the residual stream."""

    def __init__(
        self,
        *,
        eps: float,
        output: torch.Tensor,
        output_bias: torch.Tensor | None,
        norm: torch.Tensor,
        gate_up: torch.Tensor,
        gate_up_bias: torch.Tensor | None,
        down: torch.Tensor,
        down_bias: torch.Tensor | None,
    ) -> None:
        self._tensors = output, output_bias, norm, gate_up, gate_up_bias, down, down_bias
        self._layer = _After(*output.shape, down.shape[1], *map(_pointer, self._tensors), eps)
        self._dtype = _DTYPES[norm.dtype]
        self._address = ctypes.addressof(self._layer)
        self._call = _function("headrace_after_attention")

    def __call__(self, attended: torch.Tensor, hidden: torch.Tensor) -> None:
        """Adds to hidden [rows, hidden_size], dense, what follows from attended [rows, heads * head_dim]."""
        attended = _with_dense_rows(attended)
        self._call(
            self._dtype,
            self._address,
            attended.data_ptr(),
            attended.stride(0),
            attended.shape[0],
            hidden.data_ptr(),
        )


def _with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
