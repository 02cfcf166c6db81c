"""Objects of several places read as if they lay in one: a transfer has one store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.base import Found, Reader, Store, Target


class _Everywhere(ModelSource):
    """No one place: an object's name is its whole URI."""

    __slots__ = ()

    def uri_of(self, name: str) -> str:
        return name


class SeveralStores:
    """Reads each object from the store that it belongs to. It has no listing."""

    def __init__(self, objects: Sequence[tuple[Store, ObjectInfo]]) -> None:
        self.source: ModelSource = _Everywhere("file", "", "", "several places")
        self._stores = list({id(store): store for store, _ in objects}.values())
        self.items = tuple(replace(item, name=store.source.uri_of(item.name)) for store, item in objects)
        self._origins = dict(zip(self.items, objects, strict=True))

    def origin(self, item: ObjectInfo) -> tuple[Store, ObjectInfo]:
        """The store that one of `items` belongs to, and the item as that store knows it."""
        return self._origins[item]

    @property
    def identity(self) -> str:
        """The identities of all, for a metadata cache that is not asked for here."""
        return "\n".join(store.identity for store in self._stores)

    def list(self) -> Listing:
        """The objects that were given."""
        return Listing(tuple(sorted(self.items, key=lambda item: item.name)))

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up; `name` is a whole URI."""
        store, item = next(pair for own, pair in self._origins.items() if own.name == name)
        found = store.look_up(item.name, first_bytes)
        return Found(replace(found.item, name=name), found.prefix)

    def open_reader(self) -> "_Reader":
        """Connections to each place, made when one of its objects is first read."""
        return _Reader(self._origins)


class _Reader:
    def __init__(self, origins: Mapping[ObjectInfo, tuple[Store, ObjectInfo]]) -> None:
        self._origins = origins
        self._readers: dict[int, Reader] = {}
        self._aborted = False

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        store, own = self._origins[item]
        reader = self._readers.get(id(store))
        if reader is None:
            reader = store.open_reader()
            self._readers = {**self._readers, id(store): reader}  # `abort` may be reading it
            if self._aborted:
                reader.abort()
        reader.read_into(own, start, target)

    def abort(self) -> None:
        """See Reader.abort."""
        self._aborted = True
        for reader in self._readers.values():
            reader.abort()

    def close(self) -> None:
        """See Reader.close."""
        for reader in self._readers.values():
            reader.close()
