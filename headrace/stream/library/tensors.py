"""A tensor's own bytes as numpy's array or torch's tensor. torch is imported when such a tensor is asked for."""

import math
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError
from headrace.stream.checkpoint.header import DTYPE_BITS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Framework = Literal["pt", "numpy"]

_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
# numpy's own; ml_dtypes has the others. Formats below a byte come packed, as uint8.
_NUMPY_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64", "F4": "uint8", "F6_E2M3": "uint8", "F6_E3M2": "uint8",
}  # fmt: skip
_ML_DTYPES_NAMES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_SURE_DIMENSIONS = 32


class BadFramework(HeadraceError):
    """Tensors were asked for in a form that they cannot be given in."""


def check_framework(framework: str, device: str = "cpu") -> None:
    """Raise BadFramework for a word that names none, or for torch where it is not installed; imports nothing."""
    if framework not in ("pt", "numpy"):
        raise BadFramework(
            f"framework={framework!r} is not known.", remedy='Use "pt" (torch) or "numpy" (with ml_dtypes).'
        )
    if framework == "pt" and "torch" not in sys.modules and find_spec("torch") is None:
        raise BadFramework(
            "torch is not installed.",
            remedy='Ask for numpy arrays: framework="numpy", or `pip install torch`.',
        )
    if framework == "numpy" and device != "cpu":
        raise BadFramework(
            f"numpy's arrays cannot be on device {device!r}.", remedy='Use framework="pt" or device="cpu".'
        )


def check_device(device: str) -> None:
    """Prove that tensors can be on the device; imports torch for another than "cpu". Raises BadFramework."""
    if device == "cpu":
        return
    import torch

    try:
        torch.empty(0, device=device)
    # What torch raises where a device is unknown, not built in or not there: RuntimeError, AssertionError, ImportError …
    except Exception as error:
        why = str(error).strip().partition("\n")[0].rstrip(".")
        raise BadFramework(
            f"Tensors cannot be on device {device!r}: {why[:300]}.",
            remedy='Use device="cpu", or a device that torch has on this machine.',
        ) from None


def check_dtypes(framework: Framework, tensors: Iterable[tuple[str, str]]) -> None:
    """Prove that all (name, dtype) can be given; imports torch for "pt". Raises BadFramework, naming a tensor."""
    if framework == "numpy":
        return
    for dtype, name in {dtype: name for name, dtype in tensors}.items():
        if _torch_dtype(dtype) is None:
            raise BadFramework(
                f"Tensor {name} has the dtype {dtype}, which the installed torch has not.",
                remedy='Ask for its packed bytes: framework="numpy", or leave it out with names=...',
            )


def check_dimensions(framework: Framework, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Prove that all (name, shape) can be given: numpy's arrays have 64 dimensions at the most (before 2.0, 32).

    Raises BadFramework, naming a tensor.
    """
    if framework != "numpy":
        return
    name, shape = max(tensors, key=lambda tensor: len(tensor[1]), default=("", ()))
    if len(shape) <= _SURE_DIMENSIONS:
        return
    import numpy as np

    try:
        np.empty(1).reshape((1,) * len(shape))
    except ValueError:
        raise BadFramework(
            f"Tensor {name} has {len(shape):,} dimensions, more than numpy's arrays have.",
            remedy='Ask for torch\'s tensors: framework="pt", or leave it out with names=...',
        ) from None


def shown_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that an array of this dtype gets: below a byte the last dimension counts bytes, not elements.

    Where a row is no whole number of bytes the packed bytes have one dimension.
    """
    bits = DTYPE_BITS[dtype]
    if bits >= 8:
        return shape
    if shape and shape[-1] * bits % 8 == 0:
        return (*shape[:-1], shape[-1] * bits // 8)
    return (math.prod(shape) * bits // 8,)


def as_array(memory: "npt.NDArray[np.uint8]", dtype: str, shape: tuple[int, ...]) -> "npt.NDArray[Any]":
    """numpy's view of a tensor's bytes; `shape` in elements."""
    return memory.view(_numpy_dtype(dtype)).reshape(shown_shape(dtype, shape))


def as_tensor(memory: "npt.NDArray[np.uint8]", dtype: str, shape: tuple[int, ...]) -> "torch.Tensor":
    """torch's view of a tensor's bytes, which it keeps alive; `shape` in elements. The dtype was checked before."""
    import torch

    known = _torch_dtype(dtype)
    assert known is not None, dtype
    shape = shown_shape(dtype, shape)
    if memory.size == 0:
        return torch.empty(shape, dtype=known)
    flat = torch.frombuffer(memory, dtype=known)
    return flat if len(shape) == 1 else flat.view(shape)


@cache
def _torch_dtype(dtype: str) -> "torch.dtype | None":
    import torch

    return getattr(torch, _TORCH_NAMES.get(dtype, "?"), None)


@cache
def _numpy_dtype(dtype: str) -> "np.dtype[Any]":
    import numpy as np

    if dtype in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[dtype])
    import ml_dtypes

    known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES_NAMES[dtype]))
    return known
