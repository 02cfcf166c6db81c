"""Listings that go deeper: a model's folder with its chat templates, and all that lies below a place."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from headrace.source.files import TEMPLATE_FOLDERS, is_template
from headrace.source.objects import Listing, ObjectInfo
from headrace.store.base import ListsBelow, Store, list_below
from headrace.store.errors import TransientError, Unsupported
from headrace.stream.checkpoint.headers import SMALL_READ_POLICY, list_model
from headrace.stream.retry import persistently

MOST_OBJECTS = 1_000_000
_COUNT_EVERY = 1_000


def list_with_templates(store: Store) -> Listing:
    """What lies directly under the prefix, and the chat templates in their folders: one request more for each that is.

    Raises as Store.list.
    """
    listing = list_model(store)
    folders = [folder for folder in TEMPLATE_FOLDERS if folder in listing.folders]
    if not folders or not isinstance(store, ListsBelow):
        return listing
    objects = list(listing.objects)
    for folder in folders:
        objects += [item for item in list_all_below(store, folder) if is_template(item.name)]
    return replace(listing, objects=tuple(sorted(objects, key=lambda item: item.name)))


def list_all_below(
    store: Store,
    folder: str = "",
    *,
    most: int = MOST_OBJECTS,
    on_count: Callable[[int], None] = lambda _count: None,
) -> tuple[ObjectInfo, ...]:
    """All that lies below the prefix, or below a folder of it, in all depths; names relative to the prefix.

    What the store may get over is tried again from the beginning.

    Args:
        on_count: told now and then how many there are so far.

    Raises:
        Unsupported: the store has no listing, or there are more than `most` objects.
        StoreError: as ListsBelow.list_below.
    """

    def read() -> tuple[ObjectInfo, ...]:
        found: list[ObjectInfo] = []
        for item in itertools.islice(list_below(store, folder), most + 1):
            found.append(item)
            if len(found) % _COUNT_EVERY == 0:
                on_count(len(found))
        return tuple(found)

    found = persistently(read, SMALL_READ_POLICY, time.sleep, retried=(TransientError,))
    if len(found) > most:
        raise Unsupported(
            store.source.uri,
            f"More than {most:,} objects lie below it.",
            remedy="Name a folder further down.",
        )
    return found
