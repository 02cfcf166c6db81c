"""What a load of the soak wants of its tensors, drawn by chance, and the bytes that have to come of it."""

import random
from typing import Any

import numpy as np

from headrace.stream.library.indexing import Index
from headrace.stream.plan import Columns, Placement, placed_bytes
from tests.faults.soak_case import DTYPES
from tests.stream.safetensors_files import Content


def draw_slices(
    chance: random.Random, wanted: dict[str, Content]
) -> tuple[dict[str, Index], dict[str, bytes]]:
    """Parts of some tensors, and the bytes of all."""
    slices: dict[str, Index] = {}
    expected: dict[str, bytes] = {}
    for name, tensor in wanted.items():
        rows, columns = tensor.shape
        part: tuple[slice, slice] = (slice(0, rows), slice(0, columns))
        if rows and chance.random() < 0.3:
            part = (_part(chance, rows), _part(chance, columns))
            slices[name] = part
        whole = np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tensor.shape)
        expected[name] = whole[part].tobytes()
    return slices, expected


def draw_placement(
    chance: random.Random, tensor: Content, shard: int, start: int, number: int
) -> tuple[Placement, bytes]:
    """All rows of a tensor, perhaps some columns of them, perhaps in another format."""
    item = np.dtype(DTYPES[tensor.dtype]).itemsize
    rows, width = tensor.shape
    dtype = tensor.dtype
    if dtype != "U8" and chance.random() < 0.3:
        dtype = chance.choice(["BF16", "F32", "F16"])
    columns = None
    kept = slice(0, width)
    if rows and chance.random() < 0.3:
        kept = _part(chance, width)
        columns = Columns(width * item, kept.start * item, kept.stop * item)
    placement = Placement(
        shard, start, start + len(tensor.data), 0, number, tensor.dtype, dtype, number, columns
    )
    whole: Any = np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tensor.shape)
    data = whole[:, kept].astype(np.float32).astype(DTYPES[dtype]).tobytes()
    assert len(data) == placed_bytes(placement)
    return placement, data


def _part(chance: random.Random, size: int) -> slice:
    first = chance.randrange(size)
    return slice(first, chance.randint(first + 1, size))
