"""The safetensors header: parsed and proved before anything is allocated.

Format: 8 bytes little-endian header length N, N bytes of JSON (name → dtype, shape, data_offsets; an
optional "__metadata__" of strings), then the data section that data_offsets count from.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header_entries import Entry, plain_entries

MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
_MAX_SIZE = (1 << 63) - 1
_LONGEST_SHOWN = 200
_LFS_POINTER = b"version https://git-lfs."
DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_DTYPES = {name: name for name in DTYPE_BITS}  # one string for each, however many tensors have it


class BadHeader(HeadraceError):
    """A safetensors object whose header is not legal, or does not fit the object."""

    def __init__(self, where: str, cause: str, remedy: str = "") -> None:
        super().__init__(
            f"{where}: {cause}",
            remedy=remedy or "The file is damaged or was not uploaded whole: upload it again.",
        )


class TensorInfo(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a shard. `start` and `end` count bytes from the object's beginning.

    Where there are 10^5 of them, a struct that the collector does not look at saves a second.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors object with its proved header.

    Attributes:
        header: the JSON as it was read, for who verifies every byte of the object.
    """

    item: ObjectInfo
    tensors: dict[str, TensorInfo]
    header: bytes = b""


def header_length(prefix: bytes, size_bytes: int, where: str) -> int:
    """Length of the JSON from an object's first 8 bytes. Raises BadHeader."""
    if len(prefix) < 8:
        raise BadHeader(where, f"the object has {size_bytes} bytes, too few for a safetensors header.")
    if prefix.startswith(_LFS_POINTER):
        raise BadHeader(
            where,
            "it is a pointer of git-lfs, which stands for the file.",
            "Fetch the file itself (`git lfs pull`), and upload it again where it was uploaded.",
        )
    length = int.from_bytes(prefix[:8], "little")
    if length > MAX_HEADER_BYTES or length + 8 > size_bytes:
        raise BadHeader(
            where,
            f"its header claims {length:,} bytes, the object has {size_bytes:,}; it is not safetensors or is cut off.",
        )
    return length


def parse_header(header: bytes, item: ObjectInfo, where: str) -> Shard:
    """Parse the JSON of a header and prove it: legal dtypes, sizes that fit shapes, no overlap, no gap,
    no name twice, and an end that is the object's own end.

    Raises:
        BadHeader: naming the object and the tensor.
    """
    base = 8 + len(header)
    plain = plain_entries(header)
    tensors = _plain_tensors(plain, base) if plain is not None else None
    if tensors is None:
        tensors = _careful_tensors(header, base, where)
    end = _prove_gapless(tensors, base, where)
    if end != item.size_bytes:
        kind = "is cut off" if item.size_bytes < end else "has bytes after its last tensor"
        raise BadHeader(
            where,
            f"the object {kind}: the header describes {end:,} bytes, the listing says {item.size_bytes:,}.",
        )
    return Shard(item, tensors, header)


def _plain_tensors(entries: Mapping[str, Entry], base: int) -> dict[str, TensorInfo] | None:
    """The tensors of plain entries; None where one is not legal, so that the careful way says why."""
    tensors: dict[str, TensorInfo] = {}
    for name, entry in entries.items():
        shape, (start, end) = entry.shape, entry.data_offsets or (0, 0)
        dtype = _DTYPES.get(entry.dtype or "")
        if dtype is None or shape is None or math.prod(shape) * DTYPE_BITS[dtype] != 8 * (end - start):
            return None
        tensors[name] = TensorInfo(name, dtype, shape, base + start, base + end)
    return tensors


def _careful_tensors(header: bytes, base: int, where: str) -> dict[str, TensorInfo]:
    try:
        entries = json.loads(header.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadHeader(where, f"its header is not valid JSON ({error}).") from None
    if not isinstance(entries, dict):
        raise BadHeader(where, "its header is not a JSON object.")
    metadata = entries.get("__metadata__")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise BadHeader(where, "its __metadata__ is no JSON object of strings.")
    return {
        name: _tensor(name, entry, base, where) for name, entry in entries.items() if name != "__metadata__"
    }


def _prove_gapless(tensors: Mapping[str, TensorInfo], base: int, where: str) -> int:
    """Where the last tensor ends. Raises BadHeader where one does not begin at the end of the one before."""
    end = base
    for tensor in tensors.values():
        if tensor.start != end:
            break
        end = tensor.end
    else:  # most files name them as they lie
        return end
    end = base
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            kind = "overlaps the one before it" if tensor.start < end else "leaves a gap before it"
            raise BadHeader(where, f"tensor {_shown(tensor.name)} {kind}.")
        end = tensor.end
    return end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice")
    for name in result:
        name.encode()  # an escaped half of a surrogate pair is no text: no log and no other process could carry it
    return result


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_SIZE


def _product(shape: list[int]) -> int | None:
    """Elements of the shape, None for more than any file holds.

    Stops there: a header of a few megabytes could otherwise ask for a number of millions of digits.
    """
    if 0 in shape:
        return 0
    elements = 1
    for size in shape:
        elements *= size
        if elements > _MAX_SIZE:
            return None
    return elements


def _tensor(name: str, entry: object, base: int, where: str) -> TensorInfo:
    def bad(cause: str) -> BadHeader:
        return BadHeader(where, f"tensor {_shown(name)} {cause}.")

    if not isinstance(entry, dict):
        raise bad("is not described by a JSON object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"has the unknown dtype {_shown(dtype)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)) or (elements := _product(shape)) is None:
        raise bad(f"has the impossible shape {_shown(shape)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise bad(f"has the impossible data_offsets {_shown(offsets)}")
    start, end = offsets
    bits = elements * DTYPE_BITS[dtype]
    if bits % 8 or end - start != bits // 8:
        raise bad(f"({dtype}, shape {_shown(shape)}) takes {bits:,} bits but spans {end - start:,} bytes")
    return TensorInfo(name, dtype, tuple(shape), base + start, base + end)


def _shown(value: object) -> str:
    """A value from the file for a message, which must be short and printable whatever it is."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
