"""What `tensor[...]` asks for: numpy's basic indices as half-open ranges, one for each dimension. Pure."""

import operator
from dataclasses import dataclass
from types import EllipsisType
from typing import SupportsIndex

from headrace.errors import HeadraceError

Item = SupportsIndex | slice | EllipsisType
Index = Item | tuple[Item, ...]
Ranges = tuple[tuple[int, int], ...]


class BadIndex(HeadraceError, IndexError):
    """An index that a tensor does not have, or that is not read from a store."""


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a tensor.

    Attributes:
        ranges: [start, stop) of each dimension.
        dropped: dimensions that were given as one number, which the result does not have.
    """

    ranges: Ranges
    dropped: frozenset[int]


def whole(shape: tuple[int, ...]) -> Region:
    """All of a tensor."""
    return Region(tuple((0, size) for size in shape), frozenset())


def region_of(index: Index, shape: tuple[int, ...], tensor: str) -> Region:
    """The box that an index names: numbers, slices of step 1 and one `...`, negative ones from the end.

    As with numpy, a slice beyond the end is cut off there.

    Raises:
        BadIndex: too many dimensions, a number beyond the end, another step, or another kind of index.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise _bad(tensor, shape, "has more than one `...`")
    if len(items) - len(dots) > len(shape):
        raise _bad(tensor, shape, f"has {len(items) - len(dots)} dimensions")
    place = dots[0] if dots else len(items)
    rest = [slice(None)] * (len(shape) - len(items) + len(dots))
    items[place : place + len(dots)] = rest
    ranges: list[tuple[int, int]] = []
    dropped: list[int] = []
    for dimension, (item, size) in enumerate(zip(items, shape, strict=True)):
        if isinstance(item, slice):
            ranges.append(_range_of(item, size, tensor, shape))
        else:
            at = _number(item, tensor, shape)
            if not -size <= at < size:
                raise _bad(tensor, shape, f"asks for {at} of {size} in dimension {dimension}")
            ranges.append((at % size, at % size + 1))
            dropped.append(dimension)
    return Region(tuple(ranges), frozenset(dropped))


def _range_of(item: slice, size: int, tensor: str, shape: tuple[int, ...]) -> tuple[int, int]:
    try:
        start, stop, step = item.indices(size)
    except (TypeError, ValueError):  # bounds that are no whole numbers, a step of 0
        raise _bad(tensor, shape, f"holds {item!r:.100}") from None
    if step != 1:
        raise BadIndex(
            f"{tensor}: a slice with the step {step} is not read from a store.",
            remedy="Read with step 1 and take every n-th row of what comes.",
        )
    return start, max(start, stop)


def _number(item: object, tensor: str, shape: tuple[int, ...]) -> int:
    # To Python a bool is a number, to numpy a mask.
    if isinstance(item, bool):
        raise _bad(tensor, shape, f"holds {item}")
    try:
        return operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        raise _bad(tensor, shape, f"holds {type(item).__name__} {item!r:.100}") from None


def _bad(tensor: str, shape: tuple[int, ...], cause: str) -> BadIndex:
    return BadIndex(
        f"{tensor} has the shape {list(shape)}; the index {cause}.",
        remedy="Use whole numbers, slices with step 1 and `...`.",
    )
