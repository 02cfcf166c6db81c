"""What the streamer asks of a store. Each kind of store is one file beside this one."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.errors import NotFound, Unsupported


@dataclass(slots=True)
class Target:
    """Where the bytes of one ranged read go, and how many of them have arrived.

    Attributes:
        views: writable byte views that the range fills one after another.
        received: bytes that are in place, which only grows; a failed read is resumed from here.
        size: bytes of the whole range.
    """

    views: Sequence[memoryview]
    received: int = 0
    size: int = field(init=False)
    _ends: list[int] = field(init=False)
    _current: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._ends = list(itertools.accumulate(len(view) for view in self.views))
        self.size = self._ends[-1] if self._ends else 0

    def next_view(self) -> memoryview:
        """The rest of the view that the next byte goes to; empty when the range is complete."""
        while self._current < len(self.views) and self._ends[self._current] <= self.received:
            self._current += 1
        if self._current == len(self.views):
            return memoryview(b"")
        view = self.views[self._current]
        return view[len(view) - (self._ends[self._current] - self.received) :]


@dataclass(frozen=True, slots=True)
class Found:
    """One object that was looked up without a listing.

    Attributes:
        item: its size and version, which later reads are pinned to.
        prefix: its first bytes, of this version: as many as were asked for, or all that there are.
    """

    item: ObjectInfo
    prefix: bytes


class Reader(Protocol):
    """One connection (or file handle). Belongs to one thread; only `abort` may come from another."""

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """Read bytes [start + target.received, start + target.size) of this version of the object.

        Raises:
            TransientError: worth trying again from `target.received`.
            StoreError: final; see headrace.store.errors.
        """

    def abort(self) -> None:
        """Make a read that is under way in another thread fail soon."""

    def close(self) -> None:
        """Give the connection back to the system."""


class Store(Protocol):
    """One model's place: a bucket and prefix, or a folder."""

    source: ModelSource

    @property
    def identity(self) -> str:
        """What tells this place from others for the metadata cache: endpoint, bucket and prefix."""

    def list(self) -> Listing:
        """What lies directly under the prefix. Raises StoreError."""

    def look_up(self, name: str, first_bytes: int) -> Found:
        """One object directly under the prefix, by one ranged read of its first bytes and without a listing.

        May be called from several threads at once.

        Args:
            name: relative to the prefix.
            first_bytes: how many bytes of it are wanted, at least 1.

        Raises:
            NotFound: there is no such object.
            TransientError: worth trying again.
            StoreError: final; see headrace.store.errors.
        """

    def open_reader(self) -> Reader:
        """A new connection, made when it is first used."""


@runtime_checkable
class ListsBelow(Protocol):
    """A store that can also list what lies in folders below its prefix; a plain web server cannot."""

    def list_below(self, folder: str = "") -> Iterator[ObjectInfo]:
        """Every object below the prefix in all depths, page by page and in no promised order.

        Names are relative to the prefix and have slashes inside ("templates/default.jinja"). Nothing is hidden but
        the empty objects that stand for folders (a name that ends in a slash), and on a file system what is no file.
        A place that holds nothing yields nothing.

        Args:
            folder: only what lies below this folder of the prefix ("templates"), names still relative to the prefix.

        Raises:
            NotFound: the bucket does not exist.
            TransientError: worth beginning again.
            StoreError: final; see headrace.store.errors.
        """


def list_below(store: Store, folder: str = "") -> Iterator[ObjectInfo]:
    """As ListsBelow.list_below. Raises Unsupported, at once, for a store that has no listing."""
    if not isinstance(store, ListsBelow):
        raise Unsupported(
            store.source.uri,
            "A web server has no listing, so what lies below this place is not known.",
            remedy="Name a bucket or a folder.",
        )
    return store.list_below(folder)


def read_whole(reader: Reader, item: ObjectInfo) -> bytes:
    """All bytes of a small object. Raises as Reader.read_into."""
    return read_range(reader, item, 0, item.size_bytes)


def read_range(reader: Reader, item: ObjectInfo, start: int, length: int) -> bytes:
    """Bytes [start, start + length) of an object. Raises as Reader.read_into."""
    buffer = bytearray(length)
    reader.read_into(item, start, Target([memoryview(buffer)]))
    return bytes(buffer)


def refuse_odd_name(name: str, uri: str) -> None:
    """Raise NotFound for a relative name that no object may have: it would lead out of the prefix."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
        raise NotFound(uri, f"No object can have the name {name!r:.200}.", remedy="Correct the name.")


def open_store(source: ModelSource) -> Store:
    """The store that a source names. Raises StoreError for settings that cannot work."""
    if source.scheme == "file":
        from headrace.store.local.store import LocalStore

        return LocalStore(source)
    if source.is_web:
        from headrace.store.web.settings import resolve_web_settings
        from headrace.store.web.store import HttpStore

        return HttpStore(source, resolve_web_settings())
    if source.scheme == "gs":
        from headrace.store.gcs.settings import resolve_gcs_settings
        from headrace.store.gcs.store import GcsStore

        return GcsStore(source, resolve_gcs_settings())
    if source.scheme == "az":
        from headrace.store.azure.settings import resolve_azure_settings
        from headrace.store.azure.store import AzureStore

        return AzureStore(source, resolve_azure_settings(source))
    if source.scheme == "hf":
        from headrace.store.hub.open import open_hub

        return open_hub(source)
    from headrace.store.s3.settings import resolve_s3_settings
    from headrace.store.s3.store import S3Store

    return S3Store(source, resolve_s3_settings())
