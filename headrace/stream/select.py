"""What is wanted of a checkpoint's tensors, as placements: all, some, row slices, a rank's slices. Pure.

Each tensor (or slice) is a buffer and a group of its own. The order of the groups is the caller's, or the files'.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from headrace.errors import HeadraceError
from headrace.stream.checkpoint.header import DTYPE_BITS, Shard, TensorInfo
from headrace.stream.library.indexing import Index, Ranges, region_of, whole
from headrace.stream.plan import Columns, Placement

_SHOWN = 8


class UnknownTensor(HeadraceError):
    """A name that is in none of the files."""


class BadSlice(HeadraceError):
    """A slice that a tensor cannot be cut into, or that no plan reads."""


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """A rank's share of a model: SGLang's and vLLM's rule, equal parts of one dimension.

    Attributes:
        rank: this rank, from 0.
        size: how many there are.
        dims: the dimension that is cut, by name or shell pattern ("*.o_proj.weight": 1); the first that fits
            counts. A tensor that none fits, or None, is read whole.
    """

    rank: int
    size: int
    dims: Mapping[str, int | None]


class SelectedTensor(msgspec.Struct, frozen=True, gc=False):
    """What comes of one tensor.

    Attributes:
        shard: index of its file.
        dtype: safetensors' name of it.
        shape: of what is read: the tensor's own, or the slice's.
        size_bytes: its memory.
    """

    name: str
    shard: int
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The tensors in reading order; placement i fills buffer i, which is tensor i."""

    tensors: tuple[SelectedTensor, ...]
    placements: tuple[Placement, ...]

    @property
    def size_bytes(self) -> int:
        """The memory of all of them."""
        return sum(tensor.size_bytes for tensor in self.tensors)


def select(
    shards: Sequence[Shard],
    *,
    names: Iterable[str] | None = None,
    slices: Mapping[str, Index] | None = None,
    tensor_parallel: TensorParallel | None = None,
) -> Selection:
    """Choose and place tensors.

    Args:
        names: only these, in this order; None is all, file by file as they lie there. A name in two files is
            taken from both.
        slices: for some of them, the part that is wanted; numbers are no slices: all dimensions stay.
        tensor_parallel: whose rank's parts are wanted, where `slices` does not say otherwise.

    Raises:
        UnknownTensor: a name that no file holds, or that `slices` has and the selection has not.
        BadSlice, BadIndex: a part that cannot be had; a dimension that the ranks do not divide.
    """
    if tensor_parallel is not None:
        _check_ranks(tensor_parallel)
    if slices is not None:
        _check_mapping(slices, "slices", "{name: slice(0, 512)}")
    chosen = _chosen(shards, names)
    if asked := [*(slices or ()), *(_plain_names(tensor_parallel) if names is None else ())]:
        taken = {info.name for _, info in chosen}
        _refuse_unknown([name for name in asked if name not in taken], shards)
    in_parts = slices is not None or tensor_parallel is not None

    tensors: list[SelectedTensor] = []
    placements: list[Placement] = []
    for number, info in chosen:
        ranges = _ranges_of(info, slices, tensor_parallel) if in_parts else None
        if ranges is None:
            shape, size, placement = info.shape, info.end - info.start, _whole(info, number, len(tensors))
        else:
            shape, placement = place(info, ranges, number, len(tensors))
            size = math.prod(shape) * DTYPE_BITS[info.dtype] // 8
        tensors.append(SelectedTensor(info.name, number, info.dtype, shape, size))
        placements.append(placement)
    return Selection(tuple(tensors), tuple(placements))


def _chosen(shards: Sequence[Shard], names: Iterable[str] | None) -> list[tuple[int, TensorInfo]]:
    """(index of the file, tensor) in reading order. Raises UnknownTensor."""
    if names is None:
        return [(number, info) for number, shard in enumerate(shards) for info in in_file_order(shard)]
    wanted = list(dict.fromkeys(names))
    found = {
        name: [(number, shard.tensors[name]) for number, shard in enumerate(shards) if name in shard.tensors]
        for name in wanted
    }
    _refuse_unknown([name for name in wanted if not found[name]], shards)
    return [pair for name in wanted for pair in found[name]]


def in_file_order(shard: Shard) -> list[TensorInfo]:
    """A shard's tensors as their bytes lie in the object."""
    return sorted(shard.tensors.values(), key=lambda info: (info.start, info.end))


def place(info: TensorInfo, ranges: Ranges, shard: int, buffer: int) -> tuple[tuple[int, ...], Placement]:
    """The shape of a box of a tensor, and the placement that reads it to the start of its buffer.

    A box is read where it is a run of bytes, or columns of whole rows: dimensions of which one index is wanted, then
    a range, whole dimensions, at most one more range, and whole dimensions.

    Raises:
        BadSlice: ranges of more dimensions, or one that does not begin and end at a whole byte.
    """
    shape = tuple(stop - start for start, stop in ranges)
    item_bits = DTYPE_BITS[info.dtype]
    columns: tuple[int, int, int] | None = None
    if 0 in shape:
        offset = length = 0
    else:
        steps = [math.prod(info.shape[at + 1 :]) * item_bits for at in range(len(shape))]  # bits of one index
        first = next((at for at, size in enumerate(shape) if size != 1), len(shape))
        offset = sum(ranges[at][0] * steps[at] for at in range(min(first + 1, len(shape))))
        length = shape[first] * steps[first] if first < len(shape) else item_bits
        partial = [at for at in range(first + 1, len(shape)) if shape[at] != info.shape[at]]
        if len(partial) > 1:
            raise BadSlice(
                f"{info.name}: {_shown(ranges)} of {list(info.shape)} cuts more than two dimensions.",
                remedy="Cut the first and one other, and the rest of what comes.",
            )
        if partial:
            (at,) = partial
            columns = (info.shape[at] * steps[at], ranges[at][0] * steps[at], ranges[at][1] * steps[at])
    if any(bits % 8 for bits in (offset, length, *(columns or ()))):
        raise BadSlice(
            f"{info.name}: {_shown(ranges)} of {list(info.shape)} does not begin and end at a whole byte in "
            f"{info.dtype}.",
            remedy=f"Cut at multiples of {math.lcm(8, item_bits) // item_bits} elements.",
        )
    start = info.start + offset // 8
    return shape, Placement(
        shard,
        start,
        start + length // 8,
        0,
        buffer,
        info.dtype,
        info.dtype,
        buffer=buffer,
        columns=Columns(*(bits // 8 for bits in columns)) if columns else None,
    )


def _whole(info: TensorInfo, shard: int, buffer: int) -> Placement:
    return Placement(shard, info.start, info.end, 0, buffer, info.dtype, info.dtype, buffer)


def rank_range(size: int, rank: int, ranks: int) -> tuple[int, int] | None:
    """A rank's part of a dimension; None where they do not divide it."""
    if size % ranks:
        return None
    return size // ranks * rank, size // ranks * (rank + 1)


def _ranges_of(
    info: TensorInfo, slices: Mapping[str, Index] | None, parallel: TensorParallel | None
) -> Ranges | None:
    """What is wanted of a tensor; None is all of it."""
    if slices is not None and info.name in slices:
        region = region_of(slices[info.name], info.shape, info.name)
        if region.dropped:
            raise BadSlice(
                f"{info.name}: a number in `slices` would drop a dimension.",
                remedy="Write n:n+1 as slice(n, n + 1).",
            )
        return region.ranges
    dim = _dimension(info.name, parallel)
    if parallel is None or dim is None:
        return None
    ranges = whole(info.shape).ranges
    if not -len(ranges) <= dim < len(ranges):
        raise BadSlice(
            f"{info.name} has the shape {list(info.shape)} and no dimension {dim} to be cut for its ranks.",
            remedy="Correct `dims`.",
        )
    dim %= len(ranges)
    part = rank_range(info.shape[dim], parallel.rank, parallel.size)
    if part is None:
        raise BadSlice(
            f"{info.name}: dimension {dim} of {list(info.shape)} is not divided by {parallel.size} ranks.",
            remedy="Use a number of ranks that divides it, or leave the tensor whole.",
        )
    return (*ranges[:dim], part, *ranges[dim + 1 :])


def _dimension(name: str, parallel: TensorParallel | None) -> int | None:
    if parallel is None:
        return None
    if name in parallel.dims:
        return parallel.dims[name]
    return next((dim for pattern, dim in parallel.dims.items() if fnmatchcase(name, pattern)), None)


def _plain_names(parallel: TensorParallel | None) -> list[str]:
    return [name for name in (parallel.dims if parallel else ()) if not set("*?[") & set(name)]


def _check_mapping(given: object, argument: str, example: str) -> None:
    """Raise BadSlice for what does not map names."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise BadSlice(f"{argument} is {given!r:.120}, which maps no names.", remedy=f"Give {example}.")


def _check_ranks(parallel: TensorParallel) -> None:
    if not isinstance(parallel, TensorParallel):
        raise BadSlice(
            f"tensor_parallel is a {type(parallel).__name__}.",
            remedy="Give headrace.TensorParallel(rank, size, dims).",
        )
    _check_mapping(parallel.dims, "dims", '{"*.q_proj.weight": 0}')
    for name, dim in parallel.dims.items():
        if dim is not None and type(dim) is not int:
            raise BadSlice(
                f"dims has {dim!r:.80} for {name}.",
                remedy="Give the number of a dimension, or None for none.",
            )
    if any(type(value) is not int for value in (parallel.rank, parallel.size)):
        raise BadSlice(
            f"rank={parallel.rank!r:.80} and size={parallel.size!r:.80} have to be whole numbers.",
            remedy='Write int(os.environ["RANK"]) where they come from the environment.',
        )
    if parallel.size < 1 or not 0 <= parallel.rank < parallel.size:
        raise BadSlice(
            f"There is no rank {parallel.rank} of {parallel.size}.", remedy="Ranks count from 0 to size - 1."
        )


def _refuse_unknown(names: list[str], shards: Sequence[Shard]) -> None:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        files = ", ".join(shard.item.name for shard in shards[:3]) + (" …" if len(shards) > 3 else "")
        raise UnknownTensor(
            f"No tensor of this name is in {files or 'no files'}: {', '.join(names[:_SHOWN])}{more}.",
            remedy="open_checkpoint(...) lists the names.",
        )


def _shown(ranges: Ranges) -> str:
    return f"[{', '.join(f'{start}:{stop}' for start, stop in ranges)}]"
