"""What a process takes of the machine, as Linux tells it."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU time since its start, of all its threads, and the memory that it holds now."""

    cpu_s: float
    resident_bytes: int


def process_usage(pid: int) -> ProcessUsage | None:
    """The usage of a process of this machine; None where it has ended or the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name, in parentheses, may hold anything; see proc(5) for the numbers after it.
    fields = stat.rpartition(")")[2].split()
    user_ticks, system_ticks, pages = int(fields[11]), int(fields[12]), int(fields[21])
    return ProcessUsage(
        cpu_s=(user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK"),
        resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
    )
