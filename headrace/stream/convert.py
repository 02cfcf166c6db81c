"""Conversion between float formats on the way into memory, without torch. Round to nearest, ties to even."""

from typing import Any

from headrace.errors import HeadraceError

CONVERTIBLE = ("F64", "F32", "F16", "BF16")


class CannotConvert(HeadraceError):
    """A tensor of the checkpoint is in a format that is not turned into the model's."""


def check_convertible(tensor: str, source_dtype: str, dtype: str) -> None:
    """Raise CannotConvert where `convert` does not serve the pair."""
    if source_dtype != dtype and not (source_dtype in CONVERTIBLE and dtype in CONVERTIBLE):
        raise CannotConvert(
            f"Tensor {tensor} is stored as {source_dtype}, which is not converted to {dtype}.",
            remedy=f"Serve a checkpoint in one of {', '.join(CONVERTIBLE)}.",
        )


def convert(source: memoryview, source_dtype: str, destination: memoryview, dtype: str) -> None:
    """Convert all elements of `source` into `destination` (byte views of as many elements).

    float64 goes to the 16-bit formats by way of float32, as in torch: it is rounded twice.
    """
    import numpy as np

    elements: Any = np.frombuffer(source, _numpy_dtype(source_dtype))
    result: Any = np.frombuffer(destination, _numpy_dtype(dtype))
    assert elements.size == result.size
    # Beyond a format's range is inf, below it 0, and a NaN stays one, as in torch: nothing to warn of.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result[...] = elements.astype(np.float32, copy=False)


def _numpy_dtype(dtype: str) -> Any:
    import ml_dtypes
    import numpy as np

    table = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    return np.dtype(table[dtype])
