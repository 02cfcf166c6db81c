"""Limits of control groups, in folders that look like the kernel's."""

from pathlib import Path

import pytest

from headrace.stream.cgroup import cpu_limits, memory_limits_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    return folder


def lay(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def own(root: Path, text: str) -> Path:
    path = root.parent / "own"
    path.write_text(text)
    return path


def test_version_2_limits_of_the_own_group_and_those_above_count(root: Path) -> None:
    lay(root, {"a/memory.max": "4000\n", "a/b/memory.max": "max\n", "a/b/c/memory.max": "9000\n"})
    assert memory_limits_bytes(root, own(root, "0::/a/b/c\n")) == [9000, 4000]


def test_in_a_container_the_limit_lies_at_the_mounts_root(root: Path) -> None:
    lay(root, {"memory.max": "5000\n", "cpu.max": "50000 100000\n"})
    inside = own(root, "0::/docker/0123abcd\n")
    assert memory_limits_bytes(root, inside) == [5000]
    assert cpu_limits(root, inside) == [1]


def test_version_1_limits_are_under_their_controller(root: Path) -> None:
    lay(
        root,
        {
            "memory/a/memory.limit_in_bytes": "7000\n",
            "cpu/a/cpu.cfs_quota_us": "250000\n",
            "cpu/a/cpu.cfs_period_us": "100000\n",
            "cpuset/a/memory.limit_in_bytes": "1\n",
        },
    )
    groups = own(root, "11:memory:/a\n5:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n")
    assert memory_limits_bytes(root, groups) == [7000]
    assert cpu_limits(root, groups) == [3]


def test_no_quota_is_no_limit(root: Path) -> None:
    lay(
        root,
        {
            "a/cpu.max": "max 100000\n",
            "cpu/a/cpu.cfs_quota_us": "-1\n",
            "cpu/a/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cpu_limits(root, own(root, "4:cpu:/a\n0::/a\n")) == []


@pytest.mark.parametrize(("quota", "cores"), [("1000", 1), ("100000", 1), ("100001", 2), ("400000", 4)])
def test_a_part_of_a_core_counts_as_a_core(root: Path, quota: str, cores: int) -> None:
    lay(root, {"cpu.max": f"{quota} 100000\n"})
    assert cpu_limits(root, own(root, "0::/\n")) == [cores]


def test_a_group_outside_of_the_mount_is_not_looked_for_above_it(root: Path) -> None:
    lay(root.parent, {"memory.max": "3\n", "cgroup/memory.max": "8000\n"})
    assert memory_limits_bytes(root, own(root, "0::/../..\n")) == [8000]


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limits_bytes(tmp_path, tmp_path / "missing") == []
    assert cpu_limits(tmp_path, tmp_path / "missing") == []
