"""open_checkpoint: a checkpoint of which only the headers were read; a tensor's bytes come when it is indexed."""

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self
from weakref import WeakValueDictionary

from headrace.errors import HeadraceError
from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Target
from headrace.stream.checkpoint.header import DTYPE_BITS, Shard, TensorInfo
from headrace.stream.library.arguments import path_text
from headrace.stream.library.indexing import Index, Ranges, Region, region_of
from headrace.stream.library.load import open_whole_model
from headrace.stream.library.memory_room import check_room, memory_room
from headrace.stream.library.opening import Opened
from headrace.stream.library.tensor_memory import allocate
from headrace.stream.library.tensors import (
    Framework,
    as_array,
    as_tensor,
    check_dimensions,
    check_dtypes,
    check_framework,
)
from headrace.stream.plan import DEFAULT_CHUNK_BYTES, Placement, placed_bytes, plan_reads
from headrace.stream.retry import RetryPolicy, persistently
from headrace.stream.select import BadSlice, in_file_order, place
from headrace.stream.transfer.transfer import Cancelled, Transfer
from headrace.stream.variables import read_settings


class CheckpointClosed(HeadraceError):
    """A tensor was asked for after the checkpoint was closed."""


def open_checkpoint(
    path: str | os.PathLike[str], *, s3_credentials: object | None = None, framework: Framework = "pt"
) -> "LazyCheckpoint":
    """Read the headers of one safetensors object, or of a folder's weights as its index names them.

    Args:
        path: as load_file's.
        framework: what indexing gives: "pt" torch's tensors (torch is imported then), "numpy" arrays.

    Raises:
        HeadraceError: of every kind that names, stores and headers can cause.
    """
    check_framework(framework)
    return LazyCheckpoint(open_whole_model(path_text(path), s3_credentials), framework)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LazyTensor:
    """One tensor, not read yet. `entry[0:512]` reads these rows, `entry[:]` or `entry[...]` all of it.

    Attributes:
        dtype: safetensors' name of it, e.g. "BF16".
        size_bytes: in the object.
        object: the URI or path of the object that holds it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    object: str
    _checkpoint: "LazyCheckpoint"
    _shard: int

    # Without this, `for row in entry` would read row by row, each in a request of its own.
    __iter__ = None

    def __getitem__(self, index: Index) -> Any:
        """Read a part: numbers, slices of step 1 and `...`, as numpy has them.

        Raises:
            BadIndex: an index that the tensor does not have (an IndexError too).
            NotEnoughMemory: the machine has not the memory for it.
            StoreError: it could not be read.
        """
        return self._checkpoint._read(self._shard, self.name, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """All of it as numpy's array. (Without this numpy would make an array of one object, the entry.)"""
        import numpy as np

        return np.asarray(self[...], dtype)

    def __repr__(self) -> str:
        return f"LazyTensor({self.name!r}, {self.dtype}, shape={list(self.shape)}, object={self.object!r})"


class LazyCheckpoint(Mapping[str, LazyTensor]):
    """name → LazyTensor, in the order of the files. Threads may read at the same time; connections are kept.

    Objects are pinned: one that is replaced meanwhile is an error, not a mixture.
    """

    def __init__(self, opened: Opened, framework: Framework) -> None:
        self._store, self._shards, self._framework = opened.store, opened.shards, framework
        self._idle = list(opened.readers)
        self._forget_threads()
        _OPEN[id(self)] = self
        self._closed = threading.Event()
        self._policy = RetryPolicy()
        self._entries = {
            info.name: self._entry(number, shard, info)
            for number, shard in enumerate(opened.shards)
            for info in in_file_order(shard)
        }

    def _forget_threads(self) -> None:
        """What threads hold: nothing yet, or nothing any more, as a forked process has none of them."""
        self._busy: set[Reader] = set()
        self._lock = threading.Lock()
        self._transfers: set[Transfer] = set()

    def _entry(self, number: int, shard: Shard, info: TensorInfo) -> LazyTensor:
        uri = self._store.source.uri_of(shard.item.name)
        return LazyTensor(info.name, info.shape, info.dtype, info.end - info.start, uri, self, number)

    def __getitem__(self, name: str) -> LazyTensor:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed.is_set() else ""
        return f"LazyCheckpoint({self._store.source.uri!r}, {len(self):,} tensors{closed})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "An open checkpoint holds connections and cannot be pickled: open it in each process."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; reads that are under way in other threads fail."""
        with self._lock:
            self._closed.set()
            idle, self._idle = self._idle, []
            for reader in self._busy:
                reader.abort()
            transfers = list(self._transfers)
        for transfer in transfers:
            transfer.cancel()
        for reader in idle:
            reader.close()

    def _read(self, shard: int, name: str, index: Index) -> Any:
        info = self._shards[shard].tensors[name]
        if self._framework == "pt":
            check_dtypes("pt", [(name, info.dtype)])
        check_dimensions(self._framework, [(name, info.shape)])
        reading = reading_of(info, region_of(index, info.shape, name), shard)
        placement = reading.placement
        size = placed_bytes(placement)
        if size > DEFAULT_CHUNK_BYTES:
            check_room(size, name, memory_room(), "Read fewer rows at once.")
        memory = allocate(size)
        if placement.columns is not None or placement.end - placement.start > DEFAULT_CHUNK_BYTES:
            self._transfer(placement, memory.data)
        elif memory.size:
            self._fetch(placement, memory.data)
        make = as_array if self._framework == "numpy" else as_tensor
        tensor: Any = make(memory, info.dtype, reading.shape)
        if reading.cut is None:
            return tensor
        part = tensor[reading.cut]
        # What had to be read beside the part must not live on with it.
        return part.copy() if self._framework == "numpy" else part.clone()

    def _transfer(self, placement: Placement, memory: memoryview) -> None:
        """Much at once, over several connections."""
        settings = read_settings()
        plan = plan_reads([placement], settings.chunk_bytes or DEFAULT_CHUNK_BYTES)
        items = [shard.item for shard in self._shards]
        with self._lock:
            self._check_open()
            transfer = Transfer(plan, items, self._store, memory, concurrency=settings.concurrency)
            self._transfers.add(transfer)
        try:
            transfer.wait()
        except Cancelled:
            raise _closed() from None
        except BaseException:
            transfer.cancel()
            raise
        finally:
            with self._lock:
                self._transfers.discard(transfer)

    def _fetch(self, placement: Placement, memory: memoryview) -> None:
        """Little at once, over a connection that is kept."""
        reader = self._take_reader()
        kept = False
        try:
            target = Target([memory])
            item: ObjectInfo = self._shards[placement.shard].item
            persistently(lambda: reader.read_into(item, placement.start, target), self._policy, self._pause)
            kept = True
        finally:
            self._give_back(reader, kept=kept)

    def _take_reader(self) -> Reader:
        with self._lock:
            self._check_open()
            reader = self._idle.pop() if self._idle else self._store.open_reader()
            self._busy.add(reader)
            return reader

    def _give_back(self, reader: Reader, *, kept: bool) -> None:
        with self._lock:
            self._busy.discard(reader)
            kept = kept and not self._closed.is_set()
            if kept:
                self._idle.append(reader)
        if not kept:
            reader.close()

    def _pause(self, seconds: float) -> None:
        """Between two tries; a checkpoint that is closed meanwhile ends them."""
        if self._closed.wait(seconds):
            raise _closed()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise _closed()


_OPEN: "WeakValueDictionary[int, LazyCheckpoint]" = WeakValueDictionary()  # as a mapping it has no hash


def _after_fork() -> None:
    for checkpoint in list(_OPEN.values()):
        checkpoint._forget_threads()


os.register_at_fork(after_in_child=_after_fork)


def _closed() -> CheckpointClosed:
    return CheckpointClosed("The checkpoint is closed.", remedy="Open it again.")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a region of a tensor is had.

    Attributes:
        shape: of what is read.
        cut: what is then taken of it; None is all.
    """

    placement: Placement
    shape: tuple[int, ...]
    cut: tuple[int | slice, ...] | None


def reading_of(info: TensorInfo, region: Region, shard: int) -> Reading:
    """Read the region itself, or where no plan can, whole rows of it to be cut. Raises BadSlice."""
    try:
        kept, placement = place(info, region.ranges, shard, 0)
    except BadSlice:
        if DTYPE_BITS[info.dtype] < 8:  # packed: it cannot be cut afterwards
            raise
        rows, cut = _rows_of(region, info.shape)
        shape, placement = place(info, rows, shard, 0)
        return Reading(placement, shape, cut)
    return Reading(placement, tuple(size for at, size in enumerate(kept) if at not in region.dropped), None)


def _rows_of(region: Region, shape: tuple[int, ...]) -> tuple[Ranges, tuple[int | slice, ...]]:
    """The region's first range (behind dimensions of which it has one index) with all that lies below, and its cut."""
    ranges: list[tuple[int, int]] = []
    cut: list[int | slice] = []
    inside = True
    for at, ((start, stop), size) in enumerate(zip(region.ranges, shape, strict=True)):
        ranges.append((start, stop) if inside else (0, size))
        first = 0 if inside else start
        cut.append(first if at in region.dropped else slice(first, first + stop - start))
        inside = inside and stop - start == 1
    return tuple(ranges), tuple(cut)
