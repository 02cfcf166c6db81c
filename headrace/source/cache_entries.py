"""What lies in the metadata cache, and keeping it small. Safe beside processes that read and write it.

An entry that a process reads is taken out of its place by a rename before it is removed, so that a reader finds all of
it or misses a file and fetches anew. What another process is writing is left alone until it is a day old.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.source.cache import ASIDE_PREFIX, GOING_PREFIX, PLACE_NAME, take_away

MOST_BYTES = 2 << 30
MOST_ENTRIES = 1_000
ABANDONED_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One version of one model's small files.

    Attributes:
        place: endpoint, bucket and prefix that it came from; "" where it does not say.
        used_s: when it was last used, in seconds since 1970, to the hour.
    """

    folder: Path
    place: str
    files: int
    size_bytes: int
    used_s: float


def list_entries(root: Path) -> tuple[CacheEntry, ...]:
    """The entries, the one that was used last first. Raises OSError for a folder that cannot be read."""
    if not root.is_dir():
        return ()
    found = [_entry(path) for path in root.iterdir() if not path.name.startswith(".")]
    entries = [entry for entry in found if entry is not None]
    return tuple(sorted(entries, key=lambda entry: (-entry.used_s, entry.folder.name)))


def _entry(folder: Path) -> CacheEntry | None:
    """None for what is no entry, or goes away meanwhile."""
    try:
        used_s = folder.stat().st_mtime
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        place = folder / PLACE_NAME
        text = place.read_text(errors="replace") if place.exists() else ""
    except OSError:
        return None
    return CacheEntry(folder, text, len(sizes), sum(sizes), used_s) if folder.is_dir() else None


def choose_to_remove(
    entries: Sequence[CacheEntry],
    *,
    now_s: float,
    older_than_s: float | None = None,
    most_bytes: int | None = None,
    most_entries: int | None = None,
) -> tuple[CacheEntry, ...]:
    """Which entries go: those that were not used for so long, then the oldest beyond the bounds. Pure."""
    kept_bytes = kept = 0
    going: list[CacheEntry] = []
    for entry in sorted(entries, key=lambda entry: -entry.used_s):
        old = older_than_s is not None and now_s - entry.used_s >= older_than_s
        large = most_bytes is not None and kept_bytes + entry.size_bytes > most_bytes
        many = most_entries is not None and kept >= most_entries
        if old or large or many:
            going.append(entry)
        else:
            kept, kept_bytes = kept + 1, kept_bytes + entry.size_bytes
    return tuple(going)


def remove_entry(entry: CacheEntry) -> bool:
    """Remove one. Whether it was there still. Raises OSError where it may not be removed."""
    return take_away(entry.folder)


def remove_abandoned(root: Path, *, now_s: float) -> int:
    """Remove what processes that ended were writing or removing; how much there was."""
    removed = 0
    for path in root.iterdir() if root.is_dir() else ():
        if path.name.startswith((ASIDE_PREFIX, GOING_PREFIX)) and _age_s(path, now_s) > ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except OSError:  # gone meanwhile
        return 0.0


def keep_bounded(root: Path) -> None:
    """After a write: remove what is abandoned, and the entries beyond the bounds that were not used for longest.

    Raises OSError where that may not be done.
    """
    remove_abandoned(root, now_s=time.time())
    for entry in choose_to_remove(
        list_entries(root), now_s=time.time(), most_bytes=MOST_BYTES, most_entries=MOST_ENTRIES
    ):
        remove_entry(entry)
