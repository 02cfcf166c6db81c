"""The memory that a rank's tensors live in, asked for when the first byte of each is there."""

import threading
from collections.abc import Mapping, Sequence

from headrace.stream.plan import Placement
from headrace.stream.transfer.seams import Buffers


class OwnBuffers:
    """Buffers by their numbers, each asked for once and let go of when its last byte is in place."""

    def __init__(self, memory: memoryview | Buffers, placements: Sequence[Placement]) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._views: dict[int, memoryview] = {}
        self._left: dict[int, int] = {}
        for placement in placements:
            size = placement.end - placement.start
            self._left[placement.buffer] = self._left.get(placement.buffer, 0) + size

    def view(self, number: int) -> memoryview:
        """The writable bytes of a buffer."""
        if isinstance(self._memory, memoryview):
            return self._memory
        with self._lock:
            if number not in self._views:
                self._views[number] = self._memory(number)
            return self._views[number]

    def placed(self, sizes: Mapping[int, int]) -> None:
        """So many bytes, as read, of each of these buffers' placements are in place."""
        with self._lock:
            for number, size in sizes.items():
                self._left[number] -= size
                if self._left[number] == 0:
                    self._views.pop(number, None)
