"""One queue of chunk numbers for several processes, without anybody who serves it.

The numbers stand in a file in memory whose open description, and with it the position of the next read, all
processes share: the kernel moves that position under a lock, so each number is read once.
"""

import os

_BYTES = 4


class Tickets:
    """A process's end of the queue. Owns its descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Args: descriptor: from `create`, or the same received over a socket."""
        self.descriptor = descriptor
        self._last = -1

    @classmethod
    def create(cls) -> "Tickets":
        """An empty queue; `fill` it before anybody takes. Raises OSError."""
        made = os.memfd_create("headrace-tickets")
        try:
            # Linux keeps reads of one position apart only for files that came by open(), which memfd_create is not.
            return cls(os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(made)

    def fill(self, count: int) -> None:
        """Put 0 .. count - 1 into the empty queue."""
        import numpy as np

        data = memoryview(np.arange(count, dtype="<u4").tobytes())
        at = 0
        while at < len(data):  # written beside the position, which stays at the beginning
            at += os.pwrite(self.descriptor, data[at:], at)

    def take(self) -> int | None:
        """The next number, None when all are taken."""
        data = os.read(self.descriptor, _BYTES)
        if not data:
            return None
        number = int.from_bytes(data, "little")
        assert len(data) == _BYTES and number > self._last, "a ticket was drawn twice"
        self._last = number
        return number

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
