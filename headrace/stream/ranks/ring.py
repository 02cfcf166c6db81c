"""Memory that the ranks of one machine share: each owns some slots, fills them and lets the others copy."""

import mmap
import os
import threading
from collections.abc import Iterable


class Slots:
    """The slots of one rank as another sees them: read only. Owns its descriptor."""

    def __init__(self, descriptor: int, slot_bytes: int, *, writable: bool = False) -> None:
        """Map the memory. Raises OSError."""
        self.descriptor = descriptor
        self._slot_bytes = slot_bytes
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._memory: mmap.mmap | None = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=access)

    def view(self, slot: int, size_bytes: int) -> memoryview:
        """The first bytes of a slot. To be let go of before the slot is given back."""
        assert self._memory is not None and size_bytes <= self._slot_bytes
        start = slot * self._slot_bytes
        return memoryview(self._memory)[start : start + size_bytes]

    def close(self) -> None:
        """Let go of the memory, which stays mapped for as long as a view of it lives."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self._memory = None


class Ring(Slots):
    """A rank's own slots, of which it knows who has still to copy from them. Safe for threads."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        """Make the memory, which costs nothing until it is touched. Raises OSError."""
        descriptor = os.memfd_create("headrace-ring")
        try:
            os.ftruncate(descriptor, slots * slot_bytes)
            super().__init__(descriptor, slot_bytes, writable=True)
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = threading.Lock()
        self._free = list(range(slots))
        self._readers: dict[int, set[int]] = {}

    def take(self) -> int | None:
        """A free slot, None while there is none."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """A slot that was taken for nothing."""
        with self._lock:
            self._free.append(slot)

    def publish(self, slot: int, readers: Iterable[int]) -> None:
        """Keep a slot until each of the readers, at least one, has copied."""
        with self._lock:
            self._readers[slot] = set(readers)
            assert self._readers[slot]

    def copied(self, slot: int, reader: int) -> bool:
        """Note that a reader has copied; whether the slot is free again."""
        with self._lock:
            readers = self._readers[slot]
            readers.remove(reader)
            if readers:
                return False
            del self._readers[slot]
            self._free.append(slot)
            return True
