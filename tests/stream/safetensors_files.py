"""Small safetensors files, made by hand so that every legal one can be: any dtype, any place of the data."""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import DTYPE_BITS, Shard, header_length, parse_header


@dataclass(frozen=True, slots=True)
class Content:
    """A tensor as it lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def content(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Content:
    """Any bits, but for BOOL, of which only 0 and 1 mean something."""
    size = math.prod(shape) * DTYPE_BITS[dtype] // 8
    chance = random.Random(f"{dtype} {shape} {seed}")
    data = bytes(chance.getrandbits(1) for _ in range(size)) if dtype == "BOOL" else chance.randbytes(size)
    return Content(dtype, shape, data)


def file_of(
    tensors: Mapping[str, Content], *, padding: int = 0, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The file; with an odd `padding` no tensor lies where its dtype would like to."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + len(tensor.data)
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode() + b" " * padding
    return len(header).to_bytes(8, "little") + header + b"".join(tensor.data for tensor in tensors.values())


def shard_of(file: bytes, name: str = "model.safetensors") -> Shard:
    """The file's header, proved."""
    item = ObjectInfo(f"model/{name}", name, len(file), "etag")
    length = header_length(file, len(file), name)
    return parse_header(file[8 : 8 + length], item, name)


# With a tensor of each dtype: rows of whole bytes, an odd one before, empty ones, scalars, names that are no ASCII.
EVERY_KIND: dict[str, Content] = {
    "odd": content("U8", (3,)),
    **{f"of.{dtype}": content(dtype, (3, 8)) for dtype in DTYPE_BITS},
    "empty": content("BF16", (0, 4)),
    "empty.inside": content("F32", (2, 0, 3)),
    "scalar": content("F64", ()),
    "one": content("I16", (1, 1, 1)),
    "größe/⚙ 重": content("F16", (5, 2)),
    "": content("U8", (1,)),
}
