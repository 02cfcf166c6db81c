"""What a checkpoint's headers say, added up for a person: its tensors, by dtype and by layer. Pure."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.stream.checkpoint.header import Shard

OUTSIDE = "(outside layers)"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor.

    Attributes:
        dtype: safetensors' name of it.
        shape: in elements.
        object: the name of the object that holds it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    object: str

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Total:
    """Tensors that belong together."""

    label: str
    tensors: int
    elements: int
    size_bytes: int


def list_tensors(shards: Sequence[Shard]) -> tuple[TensorRow, ...]:
    """Every tensor, in the order of the objects and of the bytes in them."""
    return tuple(
        TensorRow(info.name, info.dtype, info.shape, info.end - info.start, shard.item.name)
        for shard in shards
        for info in sorted(shard.tensors.values(), key=lambda info: (info.start, info.end))
    )


def total_by_dtype(rows: Iterable[TensorRow]) -> tuple[Total, ...]:
    """The largest first."""
    totals = _totals(rows, lambda row: row.dtype)
    return tuple(sorted(totals, key=lambda total: (-total.size_bytes, total.label)))


def total_by_layer(rows: Iterable[TensorRow]) -> tuple[Total, ...]:
    """Layers in the order of their numbers, what belongs to none first."""
    return tuple(
        sorted(_totals(rows, lambda row: layer_of(row.name)), key=lambda total: _natural(total.label))
    )


def total_of(rows: Iterable[TensorRow], label: str = "all") -> Total:
    """All together."""
    found = list(rows)
    return Total(label, len(found), sum(row.elements for row in found), sum(row.size_bytes for row in found))


def layer_of(name: str) -> str:
    """The name up to its first number, which counts layers: "model.layers.3"; OUTSIDE for a name without one."""
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if part.isascii() and part.isdigit():
            return ".".join(parts[: place + 1])
    return OUTSIDE


def _totals(rows: Iterable[TensorRow], label_of: Callable[[TensorRow], str]) -> list[Total]:
    groups: dict[str, list[TensorRow]] = {}
    for row in rows:
        groups.setdefault(label_of(row), []).append(row)
    return [total_of(group, label) for label, group in groups.items()]


def _natural(label: str) -> tuple[bool, tuple[tuple[int, str], ...]]:
    """layers.9 before layers.10."""
    parts = re.findall(r"\d+|\D+", label)
    return label != OUTSIDE, tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
