"""What lies directly under a prefix, from the pages of a listing."""

from collections.abc import Iterable
from typing import Protocol

from headrace.source.objects import Listing, ObjectInfo
from headrace.store.errors import Unsupported

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
