"""The metadata cache: never wrong, shared by processes, and of no consequence where it cannot be."""

import contextlib
import logging
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from headrace.source.cache import MetadataCache, cache_root, take_away
from headrace.source.objects import ObjectInfo

PLACE = "http://store:9000/bucket/model"
FILES = {
    "config.json": b'{"a": 1}',
    "tokenizer.json": b"x" * 100_000,
    "empty.json": b"",
    "templates/tool use.jinja": b"{{ x }}",
}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def items(files: Mapping[str, bytes] = FILES, /, **versions: str) -> list[ObjectInfo]:
    return [
        ObjectInfo(f"model/{name}", name, len(data), versions.get(name.partition(".")[0], f"etag-of-{name}"))
        for name, data in files.items()
    ]


def entry(place: str = PLACE, **versions: str) -> MetadataCache:
    return MetadataCache.of(place, items(**versions))


def left_over(root: Path) -> list[str]:
    return [path.name for path in (root / "metadata").iterdir() if path.name.startswith((".new-", ".old-"))]


def test_what_was_written_is_read_by_the_next_start(root: Path) -> None:
    entry().write(FILES)
    assert entry().read() == FILES
    assert left_over(root) == []


def test_an_entry_that_was_not_written_is_not_there() -> None:
    assert entry().read() is None


def test_the_order_of_the_listing_does_not_matter() -> None:
    entry().write(FILES)
    assert MetadataCache.of(PLACE, items()[::-1]).read() == FILES


@pytest.mark.parametrize("name", ["config", "tokenizer", "empty"])
def test_a_changed_etag_is_another_entry(name: str) -> None:
    entry().write(FILES)
    assert entry(**{name: "another"}).read() is None
    assert entry().read() == FILES


def test_another_place_or_another_set_of_files_is_another_entry() -> None:
    entry().write(FILES)
    assert entry("http://store:9000/bucket/other").read() is None
    assert MetadataCache.of(PLACE, items()[:-1]).read() is None


@pytest.mark.parametrize("version", ["", "W/weak"])
def test_files_without_a_strong_version_are_never_cached(version: str, root: Path) -> None:
    entry(config=version).write(FILES)
    assert entry(config=version).read() is None
    assert not root.exists()


def test_a_file_that_was_written_to_is_noticed_though_its_size_is_the_same() -> None:
    cache = entry()
    cache.write(FILES)
    (cache.folder / "config.json").write_bytes(b'{"a": 2}')
    assert cache.read() is None


def test_a_file_that_was_cut_off_or_lost_is_noticed() -> None:
    cache = entry()
    cache.write(FILES)
    (cache.folder / "tokenizer.json").write_bytes(b"x" * 50)
    assert cache.read() is None
    (cache.folder / "tokenizer.json").unlink()
    assert cache.read() is None


def test_a_broken_entry_is_written_anew() -> None:
    cache = entry()
    cache.write(FILES)
    (cache.folder / "config.json").write_bytes(b"")
    cache.write(FILES)
    assert cache.read() == FILES


def test_a_whole_entry_is_left_as_it_is() -> None:
    cache = entry()
    cache.write(FILES)
    before = (cache.folder / "config.json").stat()
    cache.write(FILES)
    assert (cache.folder / "config.json").stat().st_ino == before.st_ino


def write_many(barrier: Barrier, rounds: int) -> None:
    for number in range(rounds):
        barrier.wait()
        cache = entry(config=f"round-{number}")
        cache.write(FILES)
        assert cache.read() == FILES


def test_processes_that_write_at_once_all_find_a_whole_entry(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    rounds, barrier = 30, context.Barrier(3)
    processes = [context.Process(target=write_many, args=(barrier, rounds)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(list((root / "metadata").iterdir())) == rounds
    assert left_over(root) == []


def write_break_and_remove(number: int, rounds: int) -> None:
    chance = random.Random(number)
    cache = entry()
    for _ in range(rounds):
        cache.write(FILES)
        found = cache.read()
        assert found in (None, FILES)  # None: another has broken or removed it since
        if chance.random() < 0.5:
            with contextlib.suppress(OSError):
                (cache.folder / "config.json").write_bytes(b"cut o")
        else:
            take_away(cache.folder)


def test_an_entry_that_others_break_and_remove_meanwhile_is_written_all_the_same(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_break_and_remove, args=(number, 80)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert left_over(root) == []


def test_twenty_processes_that_start_at_once_share_one_cache(root: Path) -> None:
    program = (
        "import sys; from headrace.source.cache import MetadataCache; from headrace.source.objects import ObjectInfo\n"
        "files = {f'file-{n}': bytes([n]) * 50_000 for n in range(12)}\n"
        "items = [ObjectInfo(name, name, len(data), 'v') for name, data in files.items()]\n"
        "cache = MetadataCache.of('place', items); print('ready', flush=True); sys.stdin.read()\n"
        "found = cache.read()\n"
        "cache.write_aside(files).join()\n"
        "sys.exit(0 if found in (None, files) and cache.read() == files else 1)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    said = [process.communicate()[1] for process in processes]
    assert said == [""] * 20
    assert [process.returncode for process in processes] == [0] * 20
    assert len(list((root / "metadata").iterdir())) == 1


def test_a_read_only_cache_is_read(root: Path) -> None:
    entry().write(FILES)
    try:
        for path in (entry().folder, root / "metadata", root):
            path.chmod(0o555)
        assert entry().read() == FILES
    finally:
        for path in (root, root / "metadata", entry().folder):
            path.chmod(0o755)


def test_a_cache_that_cannot_be_written_is_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.write_text("a file, where a folder should be")
    with caplog.at_level(logging.WARNING):
        entry().write_aside(FILES).join()
    assert "cannot be written" in caplog.text
    assert "the next start fetches again" in caplog.text
    assert entry().read() is None


def test_a_place_taken_by_a_file_is_an_error_and_leaves_nothing(root: Path) -> None:
    cache = entry()
    (root / "metadata").mkdir(parents=True)
    cache.folder.write_text("a file")
    with pytest.raises(OSError):
        cache.write(FILES)
    assert left_over(root) == []


def test_write_aside_writes() -> None:
    entry().write_aside(FILES).join()
    assert entry().read() == FILES


def test_the_root_is_found_by_the_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root({"HEADRACE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/headrace")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root({}) == Path("/home/someone/.cache/headrace")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert entry().read() is None
    with pytest.raises(OSError):
        entry().write(FILES)


def test_a_use_is_noted_for_who_removes_what_is_old() -> None:
    cache = entry()
    cache.write(FILES)
    os.utime(cache.folder, (1_000_000, 1_000_000))
    assert cache.read() == FILES
    assert cache.folder.stat().st_mtime > 1_000_000_000


def test_a_name_that_leads_out_of_the_entry_is_never_written(root: Path) -> None:
    cache = MetadataCache.of(PLACE, [ObjectInfo("k", "../../out", 1, "v")])
    with pytest.raises(AssertionError):
        cache.write({"../../out": b"x"})
    assert not (root / "out").exists()
