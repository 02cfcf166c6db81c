"""A folder of a bucket from the pages of a listing: what lies directly in it, and all that lies below."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Protocol

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.errors import Unsupported
from headrace.store.nothing_there import nothing_there

MAX_OBJECTS = 100_000
MAX_PAGES = 1_000


class Page(Protocol):
    """One answer of a store that lists page by page."""

    @property
    def objects(self) -> tuple[ObjectInfo, ...]:
        """The objects."""

    @property
    def folders(self) -> tuple[str, ...]:
        """What stands for the keys that lie deeper, without slashes."""

    @property
    def next_token(self) -> str:
        """What asks for the next page; "" on the last."""


def list_folder(source: ModelSource, pages: Callable[[str], Iterable[Page]]) -> Listing:
    """What lies directly under the source's prefix.

    Args: pages: of what lies directly under a key prefix ("" or ending in a slash).

    Raises:
        NotFound: nothing lies there.
        Unsupported: more than any model has.
        StoreError: what `pages` raises.
    """
    listing = listing_of(pages(_prefix(source)), source.uri)
    if not listing.objects and not listing.folders:
        raise nothing_there(source, lambda around: listing_of(islice(pages(around), 1), source.uri))
    return listing


def list_below(
    source: ModelSource, folder: str, pages: Callable[[str], Iterable[Page]]
) -> Iterator[ObjectInfo]:
    """All that lies below a folder of the source, "" being the source itself, named from the source on.

    Args: pages: of everything whose key begins with a prefix.
    """
    below = f"{folder}/" if folder else ""
    for page in pages(_prefix(source) + below):
        yield from (replace(item, name=below + item.name) for item in page.objects)


def listing_of(pages: Iterable[Page], uri: str) -> Listing:
    """All pages as one listing. Raises Unsupported for more than any model has."""
    objects: list[ObjectInfo] = []
    folders: dict[str, None] = {}
    for number, page in enumerate(pages, 1):
        objects += page.objects
        folders.update(dict.fromkeys(page.folders))
        if page.next_token and (len(objects) + len(folders) > MAX_OBJECTS or number == MAX_PAGES):
            raise Unsupported(
                uri,
                f"More than {MAX_OBJECTS:,} objects or {MAX_PAGES:,} pages lie directly under this prefix.",
                remedy="Name the folder that holds one model.",
            )
    return Listing(tuple(sorted(objects, key=lambda item: item.name)), tuple(sorted(folders)))


def _prefix(source: ModelSource) -> str:
    return source.prefix + "/" if source.prefix else ""
