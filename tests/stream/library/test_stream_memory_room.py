"""Is there room: what the kernel says, what control groups say, and the sum in the refusal."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.stream.cgroup import memory_left_bytes
from headrace.stream.library import memory_room as module
from headrace.stream.library.memory_room import WORKING_BYTES, NotEnoughMemory, Room, check_room, memory_room
from headrace.stream.library.tensor_memory import allocate


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_group_leaves_its_limit_less_what_is_used_but_for_cached_files(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "own": "0::/a/b\n",
            "v2/a/memory.max": "5000\n",
            "v2/a/memory.current": "1000\n",
            "v2/a/b/memory.max": "9000\n",
            "v2/a/b/memory.current": "8000\n",
            "v2/a/b/memory.stat": "anon 7000\nfile 900\ninactive_file 600\nactive_file 300\nshmem 5\n",
        },
    )
    assert memory_left_bytes(tmp_path / "v2", tmp_path / "own") == [1900, 4000]


def test_version_1_is_read_by_its_own_names(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "own": "4:memory:/a\n",
            "v1/memory/a/memory.limit_in_bytes": "5000\n",
            "v1/memory/a/memory.usage_in_bytes": "4500\n",
            "v1/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 50\n",
        },
    )
    assert memory_left_bytes(tmp_path / "v1", tmp_path / "own") == [850]


def test_a_group_that_is_over_its_limit_leaves_nothing_and_one_without_a_limit_does_not_count(
    tmp_path: Path,
) -> None:
    lay(
        tmp_path,
        {
            "own": "0::/a/b\n",
            "v2/a/memory.max": "max\n",
            "v2/a/memory.current": "1000\n",
            "v2/a/b/memory.max": "50\n",
            "v2/a/b/memory.current": "70\n",
        },
    )
    assert memory_left_bytes(tmp_path / "v2", tmp_path / "own") == [0]


def test_a_limit_whose_use_is_not_told_counts_whole(tmp_path: Path) -> None:
    lay(tmp_path, {"own": "0::/\n", "v2/memory.max": "50\n"})
    assert memory_left_bytes(tmp_path / "v2", tmp_path / "own") == [50]


def test_the_smallest_room_is_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:       7 kB\n")
    monkeypatch.setattr(module, "memory_left_bytes", list)
    assert memory_room(tmp_path / "meminfo") == Room(7 << 10, "the machine's available memory")
    monkeypatch.setattr(module, "memory_left_bytes", lambda: [9000, 800])
    assert memory_room(tmp_path / "meminfo") == Room(800, "the control group's memory limit")


def test_a_system_that_does_not_tell_is_taken_to_have_all_its_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    assert (
        memory_room(tmp_path / "nothing").size_bytes == memory_room(tmp_path / "meminfo").size_bytes > 1 << 20
    )


def test_the_real_machine_has_room() -> None:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < memory_room().size_bytes <= int(facts["MemTotal"].split()[0]) * 1024


def test_what_just_fits_is_let_through_and_a_byte_more_is_not() -> None:
    room = Room(WORKING_BYTES + 1000, "the test")
    check_room(1000, "w", room, "")
    check_room(0, "nothing needs nothing", Room(0, "the test"), "")
    with pytest.raises(NotEnoughMemory) as caught:
        check_room(1001, "The model", room, "Take less.")
    assert str(caught.value) == (
        "The model: 1,001 bytes + 67,108,864 to work with = 67,109,865, but the test leaves 67,109,864. Take less."
    )


def test_a_limit_of_address_space_bounds_the_room() -> None:
    """In a process of its own: it cannot be told to forget such a limit by what else the tests have mapped."""
    program = (
        "import resource\n"
        "from headrace.stream.library.memory_room import memory_room\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "room = memory_room()\n"
        "print(0 < room.size_bytes < 1 << 30, room.bound)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "True the limit of address space (`ulimit -v`)\n"


@pytest.mark.parametrize("size_bytes", [(1 << 62) + 1, 1 << 62])
def test_memory_that_the_system_does_not_give_is_an_error_with_its_size(size_bytes: int) -> None:
    with pytest.raises(NotEnoughMemory, match=rf"does not give {size_bytes:,} bytes for a tensor"):
        allocate(size_bytes)
