"""`headrace cache` as a person and a script see it."""

import json
import os
import time
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.source.cache import MetadataCache
from headrace.source.objects import ObjectInfo

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "metadata"


def written(place: str, days: float, size_bytes: int = 1000) -> None:
    cache = MetadataCache.of(place, [ObjectInfo("config.json", "config.json", size_bytes, "v")])
    cache.write({"config.json": b"x" * size_bytes})
    used_s = time.time() - days * DAY_S
    os.utime(cache.folder, (used_s, used_s))


def places(capsys: pytest.CaptureFixture[str], *line: str) -> list[str]:
    assert main(["cache", *line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    return [entry["place"] for entry in facts["entries" if line[0] == "ls" else "removed"]]


def test_an_empty_cache_is_no_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls"]) == 0
    assert capsys.readouterr().out == f"0 entries, 0 B, in {root}.\n"
    assert main(["cache", "prune"]) == 0


def test_entries_are_a_table_with_the_last_used_first(capsys: pytest.CaptureFixture[str]) -> None:
    written("http://store/b/old", 3)
    written("http://store/b/new", 1)
    assert main(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PLACE", "FILES", "SIZE", "LAST", "USED"]
    assert [line.split()[0] for line in lines[1:3]] == ["http://store/b/new", "http://store/b/old"]
    assert lines[3].startswith("2 entries, ")


def test_a_prune_removes_what_was_not_used_for_a_month(capsys: pytest.CaptureFixture[str]) -> None:
    written("old", 31)
    written("new", 29)
    assert places(capsys, "prune") == ["old"]
    assert places(capsys, "ls") == ["new"]


def test_days_are_as_given(capsys: pytest.CaptureFixture[str]) -> None:
    written("old", 2)
    written("new", 0.1)
    assert places(capsys, "prune", "--older-than", "1") == ["old"]


def test_a_size_removes_the_least_recently_used_whatever_their_age(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written("very old", 400, 100)
    written("old", 2, 3000)
    written("new", 1, 3000)
    assert places(capsys, "prune", "--max-size", "5000") == ["old"]
    assert places(capsys, "ls") == ["new", "very old"]


def test_all_removes_all_but_says_so_first_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    written("a", 0)
    written("b", 1)
    assert places(capsys, "prune", "--all", "--dry-run") == ["a", "b"]
    assert places(capsys, "ls") == ["a", "b"]
    assert places(capsys, "prune", "--all") == ["a", "b"]
    assert places(capsys, "ls") == []


def test_without_an_action_it_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 2
    assert main(["cache", "prune", "--older-than", "-1"]) == 2


def test_a_place_that_is_no_folder_has_no_entries(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root.parent.mkdir()
    root.write_text("a file")
    assert places(capsys, "ls") == []
