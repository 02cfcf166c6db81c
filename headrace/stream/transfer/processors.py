"""Whether this machine's processors have time left: where they have none, more connections only wait for each other."""

import os

# Of all processors' time: what the workers themselves must use, and what may be idle, for that to be so.
_BUSY_SHARE = 0.3
_IDLE_SHARE = 0.1


def idle_and_all(stat: str) -> tuple[int, int]:
    """Ticks that all processors together spent idle, and all their ticks, from /proc/stat (proc(5))."""
    fields = [int(field) for field in stat.partition("\n")[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


class Processors:
    """Looked at once a window, by one thread. Only a transfer that is fast enough to keep them busy reads /proc/stat."""

    def __init__(self, count: int | None = None, stat_path: str = "/proc/stat") -> None:
        self._count = count or _usable()
        self._stat_path = stat_path
        self._before: tuple[int, int] | None = None

    def are_busy(self, cpu_s: float, seconds: float) -> bool:
        """Whether a transfer whose workers computed for `cpu_s` of these seconds had all there was to have.

        Another program's work does not count for it: a transfer that waits for the network may well take more.
        """
        if cpu_s < _BUSY_SHARE * seconds * self._count:
            self._before = None
            return False
        try:
            with open(self._stat_path) as file:
                now = idle_and_all(file.readline())
        except OSError:  # a sandbox that hides it: then it is found out by trying
            return False
        before, self._before = self._before, now
        if before is None:
            return True  # until the next look
        return now[0] - before[0] < _IDLE_SHARE * (now[1] - before[1])


def _usable() -> int:
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
