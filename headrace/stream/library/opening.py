"""Opening what is to be streamed: from names to proved headers, before anything is allocated."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from headrace.source.files import INDEX_NAME
from headrace.source.object_uri import parse_object
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource, parse_source
from headrace.source.weight_files import choose_weights
from headrace.store.base import Found, Reader, Store, read_range
from headrace.store.errors import TransientError
from headrace.stream.checkpoint.header import Shard, header_length, parse_header
from headrace.stream.checkpoint.headers import (
    SMALL_READ_POLICY,
    SPECULATIVE_BYTES,
    ReaderPool,
    fetch_file,
    fetch_shard,
    list_model,
)
from headrace.stream.checkpoint.index import check_index
from headrace.stream.library.credentials import Places
from headrace.stream.library.several_stores import SeveralStores
from headrace.stream.retry import persistently
from headrace.stream.side_by_side import side_by_side

_AT_ONCE = 16
SAFETENSORS_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Opened:
    """Objects with proved headers, and where their bytes come from.

    Attributes:
        store: reads each shard's item.
        readers: open connections that may be taken over.
    """

    store: Store
    shards: tuple[Shard, ...]
    readers: tuple[Reader, ...] = ()

    @property
    def items(self) -> list[ObjectInfo]:
        """The objects, as plans count them."""
        return [shard.item for shard in self.shards]

    def close(self) -> None:
        """Close the connections, where nobody takes them over."""
        for reader in self.readers:
            reader.close()


def open_objects(paths: Sequence[str], credentials: object | None) -> Opened:
    """The safetensors objects of these names, in their order; one read each, side by side.

    Raises:
        BadSource: a name that cannot be understood.
        BadHeader: an object is no legal safetensors.
        StoreError: one could not be read.
    """
    places = Places(credentials)
    stores: dict[ModelSource, Store] = {}
    named: list[tuple[Store, str]] = []
    for path in paths:
        source, name = parse_object(path)
        key = replace(source, text="")  # files of one folder share its store, however it was written
        if key not in stores:
            stores[key] = places.open(source)
        named.append((stores[key], name))
    shards = side_by_side(_open_object, named, _AT_ONCE)
    if len(stores) == 1:
        return Opened(named[0][0], tuple(shards))
    several = SeveralStores([(store, shard.item) for (store, _), shard in zip(named, shards, strict=True)])
    return Opened(
        several, tuple(replace(shard, item=item) for shard, item in zip(shards, several.items, strict=True))
    )


def _open_object(named: tuple[Store, str]) -> Shard:
    store, name = named
    return _shard_of(store, _look_up(store, name, SPECULATIVE_BYTES))


def _look_up(store: Store, name: str, first_bytes: int) -> Found:
    return persistently(
        lambda: store.look_up(name, first_bytes), SMALL_READ_POLICY, time.sleep, retried=(TransientError,)
    )


def _shard_of(store: Store, found: Found) -> Shard:
    """The proved header, of which all or the beginning came with the look-up."""
    item, prefix = found.item, found.prefix
    where = store.source.uri_of(item.name)
    length = header_length(prefix, item.size_bytes, where)
    if 8 + length > len(prefix):
        reader = store.open_reader()
        try:
            missing = 8 + length - len(prefix)
            prefix += persistently(
                lambda: read_range(reader, item, len(found.prefix), missing), SMALL_READ_POLICY, time.sleep
            )
        finally:
            reader.close()
    return parse_header(prefix[8 : 8 + length], item, where)


def open_model(path: str, credentials: object | None) -> Opened:
    """One safetensors object, or the weights of a folder: those that its index names, or the set that is there.

    What ends in .safetensors is an object's name, and so is any local file's; everything else is a folder's.

    Raises:
        BadModelFiles: the folder holds no weights, or not all, or the index does not fit them.
        HeadraceError: as open_objects.
    """
    if _names_object(path):
        return open_objects([path], credentials)
    store = Places(credentials).open(parse_source(path))
    listing = list_model(store)
    pool = ReaderPool(store, _AT_ONCE)
    try:
        shards = _open_weights(store, listing, pool)
    except BaseException:
        pool.abort()
        raise
    return Opened(store, shards, tuple(pool.take_readers()))


def _names_object(path: str) -> bool:
    if path.lower().startswith(("http://", "https://")):
        path = path.partition("?")[0]  # elsewhere it is a letter like others
    if path.lower().endswith(SAFETENSORS_SUFFIX):
        return True
    # Hubs' caches name files by their content.
    return "://" not in path and os.path.isfile(os.path.expanduser(path))  # noqa: PTH111, PTH113


def versions_of(path: str, credentials: object | None) -> object:
    """What is there now under a name that open_model takes, to be compared. Raises StoreError."""
    if _names_object(path):
        source, name = parse_object(path)
        return _look_up(Places(credentials).open(source), name, 8).item
    return list_model(Places(credentials).open(parse_source(path)))


def _open_weights(store: Store, listing: Listing, pool: ReaderPool) -> tuple[Shard, ...]:
    where = store.source.uri
    index_item = listing.find(INDEX_NAME)
    index = pool.map(fetch_file, [index_item])[0]() if index_item is not None else None
    weights = choose_weights(listing, where, index)
    fetches = [
        pool.map(partial(fetch_shard, where=store.source.uri_of(item.name)), [item])[0] for item in weights
    ]
    shards = tuple(fetch() for fetch in fetches)
    if index is not None:
        check_index(index, shards, where)
    return shards
