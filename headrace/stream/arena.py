"""Memory that weights live in for their whole life: one anonymous mapping, touched as bytes arrive."""

import contextlib
import mmap


class Arena:
    """A private, zeroed mapping. It is never unmapped while a view of it lives: `mmap` refuses to.

    Attributes:
        view: the whole memory, writable bytes.
    """

    def __init__(self, size_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Fewer faults where the kernel has huge pages at hand; a hint, which a kernel without them refuses.
        with contextlib.suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._memory)[:size_bytes]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return len(self.view)

    def give_back(self) -> None:
        """Let the system have the pages again; until they are written to they are zeros, and take no memory."""
        self._memory.madvise(mmap.MADV_DONTNEED)
