"""What the numbers of one tensor are like, read block by block, so that memory does not grow with the tensor."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.library.lazy_checkpoint import LazyTensor

BLOCK_BYTES = 32 << 20


class NoStatistics(HeadraceError):
    """A tensor whose dtype has no numbers that could be compared and added."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of finite elements only, but for the counts; None where there are none.

    Attributes:
        sum_of_squares: of distances from the mean, so that two can be added up.
    """

    elements: int
    zeros: int
    nans: int
    infinities: int
    least: float | None = None
    most: float | None = None
    mean: float | None = None
    sum_of_squares: float = 0.0

    @property
    def finite(self) -> int:
        """How many are neither NaN nor infinite."""
        return self.elements - self.nans - self.infinities

    @property
    def std(self) -> float | None:
        """The standard deviation (divided by the number of elements, not by one less)."""
        return math.sqrt(self.sum_of_squares / self.finite) if self.finite else None


NOTHING = Statistics(0, 0, 0, 0)


def read_statistics(tensor: LazyTensor, on_bytes: Callable[[int], None] = lambda _count: None) -> Statistics:
    """Read a tensor of a checkpoint that was opened with framework="numpy", in blocks of rows.

    Raises:
        NoStatistics: complex numbers, and formats of less than a byte.
        StoreError: it could not be read.
    """
    if DTYPE_BITS[tensor.dtype] < 8 or tensor.dtype == "C64":
        raise NoStatistics(
            f"{tensor.name} has the dtype {tensor.dtype}, of which no statistics are computed.",
            remedy="Ask for a tensor of whole or floating-point numbers.",
        )
    if not tensor.shape or tensor.size_bytes <= BLOCK_BYTES:
        found = statistics_of(tensor[...])
        on_bytes(tensor.size_bytes)
        return found
    row_bytes = tensor.size_bytes // tensor.shape[0]
    rows = max(1, BLOCK_BYTES // row_bytes)
    found = NOTHING
    for start in range(0, tensor.shape[0], rows):
        stop = min(start + rows, tensor.shape[0])
        found = combined(found, statistics_of(tensor[start:stop]))
        on_bytes((stop - start) * row_bytes)
    return found


def statistics_of(array: Any) -> Statistics:
    """Of a numpy array of any shape; of ml_dtypes too."""
    import numpy as np

    values = array.reshape(-1).astype(np.float64)
    nans = int(np.count_nonzero(np.isnan(values)))
    infinities = int(np.count_nonzero(np.isinf(values)))
    zeros = int(np.count_nonzero(values == 0))
    finite = values[np.isfinite(values)] if nans or infinities else values
    if not finite.size:
        return Statistics(values.size, zeros, nans, infinities)
    least, most, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    apart = finite - mean
    squares = float(np.dot(apart, apart))
    return Statistics(values.size, zeros, nans, infinities, least, most, mean, squares)


def combined(one: Statistics, other: Statistics) -> Statistics:
    """Of both together (Chan, Golub and LeVeque's parallel form, 1979)."""
    counts = (
        one.elements + other.elements,
        one.zeros + other.zeros,
        one.nans + other.nans,
        one.infinities + other.infinities,
    )
    if one.mean is None or other.mean is None:
        known = one if one.mean is not None else other
        return Statistics(*counts, known.least, known.most, known.mean, known.sum_of_squares)
    assert (
        one.least is not None and one.most is not None and other.least is not None and other.most is not None
    )
    both = one.finite + other.finite
    apart = other.mean - one.mean
    return Statistics(
        *counts,
        min(one.least, other.least),
        max(one.most, other.most),
        one.mean + apart * other.finite / both,
        one.sum_of_squares + other.sum_of_squares + apart * apart * one.finite * other.finite / both,
    )
