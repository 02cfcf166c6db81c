"""Is there room for what is asked? The machine's memory and its control groups' limits, before a byte is read."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.stream.cgroup import memory_left_bytes

_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")
# What reading takes beside the tensors: headers, scratch of connections, the interpreter's own growth.
WORKING_BYTES = 64 << 20


class NotEnoughMemory(HeadraceError):
    """The tensors that are asked for do not fit the memory that is left."""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that is left, and what bounds it, for a person."""

    size_bytes: int
    bound: str


def memory_room(meminfo: Path = _MEMINFO) -> Room:
    """What this process can still take: the machine's available memory, or less where a limit says so."""
    rooms = [Room(_available_bytes(meminfo), "the machine's available memory")]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        rooms.append(Room(max(0, limit - _mapped_bytes()), "the limit of address space (`ulimit -v`)"))
    rooms += [Room(left, "the control group's memory limit") for left in memory_left_bytes()]
    return min(rooms, key=lambda room: room.size_bytes)


def check_room(needed_bytes: int, what: str, room: Room, remedy: str) -> None:
    """Raise NotEnoughMemory, with the sum, where `needed_bytes` and what reading takes are more than the room."""
    total = needed_bytes + WORKING_BYTES
    if needed_bytes and total > room.size_bytes:
        raise NotEnoughMemory(
            f"{what}: {needed_bytes:,} bytes + {WORKING_BYTES:,} to work with = {total:,}, but {room.bound} leaves "
            f"{room.size_bytes:,}.",
            remedy=remedy,
        )


def _mapped_bytes() -> int:
    """The address space that this process has in use; 0 where the system does not tell."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _available_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # a system that does not tell
