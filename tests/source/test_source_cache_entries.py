"""What `headrace cache` lists and removes, and how the cache stays small by itself."""

import os
import time
from pathlib import Path

import pytest

from headrace.source import cache_entries
from headrace.source.cache import MetadataCache
from headrace.source.cache_entries import (
    ABANDONED_S,
    CacheEntry,
    choose_to_remove,
    keep_bounded,
    list_entries,
    remove_abandoned,
    remove_entry,
)
from headrace.source.objects import ObjectInfo

DAY_S = 86_400.0
NOW_S = 100 * DAY_S


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    return tmp_path / "metadata"


def written(place: str, size_bytes: int = 10, *, age_s: float = 0.0) -> MetadataCache:
    cache = MetadataCache.of(place, [ObjectInfo("config.json", "config.json", size_bytes, "v")])
    cache.write({"config.json": b"x" * size_bytes})
    used_s = time.time() - age_s
    os.utime(cache.folder, (used_s, used_s))
    return cache


def entry(name: str, size_bytes: int, days: float) -> CacheEntry:
    return CacheEntry(Path(name), name, 1, size_bytes, NOW_S - days * DAY_S)


def names(entries: tuple[CacheEntry, ...]) -> list[str]:
    return [entry.place for entry in entries]


def test_entries_tell_their_place_and_size_and_the_last_used_comes_first(root: Path) -> None:
    written("old", 10, age_s=DAY_S)
    written("new", 20)
    found = list_entries(root)
    assert names(found) == ["new", "old"]
    assert found[0].size_bytes > found[1].size_bytes > 10
    assert abs(found[0].used_s - found[1].used_s - DAY_S) < 60


def test_a_cache_that_is_not_there_has_no_entries(tmp_path: Path) -> None:
    assert list_entries(tmp_path / "nowhere") == ()
    assert remove_abandoned(tmp_path / "nowhere", now_s=0.0) == 0


def test_what_was_not_used_for_long_goes() -> None:
    entries = [entry("a", 1, 1), entry("b", 1, 30), entry("c", 1, 31)]
    assert names(choose_to_remove(entries, now_s=NOW_S, older_than_s=30 * DAY_S)) == ["b", "c"]
    assert names(choose_to_remove(entries, now_s=NOW_S, older_than_s=0)) == ["a", "b", "c"]


def test_the_oldest_go_until_the_rest_fits() -> None:
    entries = [entry("a", 40, 3), entry("b", 40, 1), entry("c", 40, 2)]
    assert names(choose_to_remove(entries, now_s=NOW_S, most_bytes=100)) == ["a"]
    assert names(choose_to_remove(entries, now_s=NOW_S, most_entries=1)) == ["c", "a"]
    assert choose_to_remove(entries, now_s=NOW_S) == ()


def test_a_removed_entry_is_gone_whole(root: Path) -> None:
    cache = written("place")
    (found,) = list_entries(root)
    assert remove_entry(found)
    assert cache.read() is None
    assert list(root.iterdir()) == []
    assert not remove_entry(found)


def test_what_another_process_is_writing_is_left_alone(root: Path) -> None:
    root.mkdir(parents=True)
    for name in (".new-running", ".new-dead", ".old-dead"):
        (root / name).mkdir()
    for name in (".new-dead", ".old-dead"):
        os.utime(root / name, (1.0, 1.0))
    assert list_entries(root) == ()
    assert remove_abandoned(root, now_s=2 + ABANDONED_S) == 2
    assert [path.name for path in root.iterdir()] == [".new-running"]


def test_a_write_keeps_the_cache_within_its_bounds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_entries, "MOST_ENTRIES", 2)
    for number in range(4):
        written(f"place-{number}", age_s=DAY_S * (4 - number))
    keep_bounded(root)
    assert names(list_entries(root)) == ["place-3", "place-2"]
