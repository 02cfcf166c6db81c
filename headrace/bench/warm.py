"""Memory that the host has given already, kept until a load begins.

A virtual machine's free memory costs several times more when it is touched first, and where the host takes free
memory back (free page reporting) that is so again after a few seconds. Measured here for huge pages: 2.2 CPU
seconds per GB after 20 s, 0.14 at once.
"""

import contextlib
import mmap

_HUGE_PAGE_BYTES = 2 << 20


class WarmMemory:
    """So much memory, to be held and touched except while a load runs. A context manager that gives it back."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = -(-size_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        self._held: mmap.mmap | None = None

    def __enter__(self) -> "WarmMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self) -> None:
        """Take it, which keeps what was just freed from going back to the host."""
        if self._held is not None or self._size_bytes == 0:
            return
        memory = mmap.mmap(-1, self._size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, self._size_bytes, mmap.PAGESIZE):
            memory[page] = 1
        self._held = memory

    def release(self) -> None:
        """Free it for whoever loads next."""
        if self._held is not None:
            self._held.close()
            self._held = None
