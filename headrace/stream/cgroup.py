"""The limits that this process's control groups set, version 2 and 1: memory and processor time."""

import math
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def memory_limits_bytes(root: Path = _ROOT, own: Path = _OWN) -> list[int]:
    """The memory limits of this process's group and of those above it; "max" is none.

    Args:
        root: where the group file systems are mounted.
        own: which groups the process is in, as /proc/self/cgroup says it.
    """
    texts = [
        _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        for version, folder in _folders("memory", root, own)
    ]
    return [int(text) for text in texts if text.isdigit()]


def memory_left_bytes(root: Path = _ROOT, own: Path = _OWN) -> list[int]:
    """What each limit of `memory_limits_bytes` leaves, with the file cache that the kernel gives back on demand."""
    left: list[int] = []
    for version, folder in _folders("memory", root, own):
        limit = _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = _read(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if limit.isdigit() and used.isdigit():
            left.append(max(0, int(limit) - int(used) + _cached_bytes(folder, version)))
        elif limit.isdigit():
            left.append(int(limit))
    return left


def _cached_bytes(folder: Path, version: int) -> int:
    """Pages of files, which count as used until the kernel drops them; version 1 writes a tree's sum as "total_"."""
    prefix = "" if version == 2 else "total_"
    facts = dict(line.partition(" ")[::2] for line in _read(folder / "memory.stat").splitlines())
    sizes = [facts.get(f"{prefix}{kind}_file", "") for kind in ("active", "inactive")]
    return sum(int(size) for size in sizes if size.isdigit())


def cpu_limits(root: Path = _ROOT, own: Path = _OWN) -> list[int]:
    """The cores' worth of time that this process's group and those above it may take, rounded up, at least 1."""
    limits: list[int] = []
    for version, folder in _folders("cpu", root, own):
        if version == 2:
            words = _read(folder / "cpu.max").split()
        else:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        # An unlimited quota is "max" in version 2 and -1 in version 1.
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            limits.append(max(1, math.ceil(int(words[0]) / int(words[1]))))
    return limits


def _folders(controller: str, root: Path, own: Path) -> list[tuple[int, Path]]:
    """Each group that has a say, with its file system's version; the innermost first."""
    found: list[tuple[int, Path]] = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, base = 2, root
        elif controller in controllers.split(","):
            version, base = 1, root / controller
        else:
            continue
        # A group outside of this process's namespace is written with "..": only the root is to be seen.
        folder = base if ".." in Path(path).parts else base / path.lstrip("/")
        # In a container the path may be the host's, and the limit lies at the mount's root.
        found += [(version, place) for place in (folder, *folder.parents) if place.is_relative_to(base)]
    return found


def _read(path: Path) -> str:
    """A small file of the kernel's, or "" where there is none to read: then it sets no limit."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
