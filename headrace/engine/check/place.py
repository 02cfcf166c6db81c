"""Is the place there, may it be listed and read, and as whom?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.engine.check.finding import Findings, ok, tried
from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.base import Store, open_store, read_range
from headrace.store.described import Setting, describe
from headrace.stream.checkpoint.headers import ReaderPool
from headrace.stream.checkpoint.model_listing import list_with_templates

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A store that answered.

    Attributes:
        pool: connections for small reads, to be ended with `abort`.
    """

    store: Store
    listing: Listing
    pool: ReaderPool

    @property
    def where(self) -> str:
        """Its name for a person."""
        return self.store.source.uri


def check_place(model: str, clock: Callable[[], float] = time.monotonic) -> Findings[Place | None]:
    """The name, the settings that lead there, and the listing."""
    source = yield from tried("name", lambda: parse_source(model))
    if source is None:
        return None
    store = yield from tried("settings", lambda: open_store(source))
    if store is None:
        return None
    settings = yield from tried("settings", lambda: describe(store))
    if settings is None:
        return None
    yield ok(
        "settings",
        "; ".join(_shown(setting) for setting in settings) or f"{source.uri} needs none.",
        settings=[{"name": each.name, "value": each.value, "origin": each.origin} for each in settings],
    )
    started = clock()
    listing = yield from tried("list", lambda: list_with_templates(store))
    if listing is None:
        return None
    seconds = clock() - started
    total = sum(item.size_bytes for item in listing.objects)
    yield ok(
        "list",
        f"{len(listing.objects):,} objects and {len(listing.folders):,} folders, {total:,} bytes ({seconds:.2f} s).",
        objects=len(listing.objects),
        size_bytes=total,
        seconds=round(seconds, 4),
    )
    return Place(store, listing, ReaderPool(store, AT_ONCE))


def check_readable(
    place: Place, item: ObjectInfo, clock: Callable[[], float] = time.monotonic
) -> Findings[bool]:
    """One byte of an object: who may list need not be allowed to read."""
    started = clock()
    byte = yield from tried(
        "read", place.pool.map(lambda reader, item: read_range(reader, item, 0, 1), [item])[0]
    )
    if byte is None:
        return False
    seconds = clock() - started
    yield ok("read", f"A byte of {item.name} came in {seconds:.2f} s.", seconds=round(seconds, 4))
    return True


def _shown(setting: Setting) -> str:
    return f"{setting.name} {setting.value} ({setting.origin})"
