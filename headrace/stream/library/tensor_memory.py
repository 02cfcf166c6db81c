"""Memory of single tensors, each an allocation of its own: who drops the tensor frees its bytes."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.stream.arena import Arena
from headrace.stream.library.memory_room import NotEnoughMemory
from headrace.stream.transfer.ledger import Cancelled

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ALIGNMENT_BYTES = 64
# From here on a mapping of its own, which goes back to the system at once; below that the heap, which is
# quicker by the thousand.
_MAPPED_BYTES = 1 << 20


def allocate(size_bytes: int) -> "npt.NDArray[np.uint8]":
    """Writable bytes that begin at a multiple of ALIGNMENT_BYTES; not touched, so not yet taken from the machine.

    Raises NotEnoughMemory where the system has no address space for them.
    """
    import numpy as np

    try:
        if size_bytes >= _MAPPED_BYTES:
            return np.frombuffer(Arena(size_bytes).view, np.uint8)
        room = np.empty(size_bytes + ALIGNMENT_BYTES - 1, np.uint8)
    except (OSError, MemoryError) as error:
        raise NotEnoughMemory(
            f"The system does not give {size_bytes:,} bytes for a tensor: {getattr(error, 'strerror', None) or error}.",
            remedy="Raise the limit of address space (`ulimit -v`) or of mappings (vm.max_map_count), or hold less at "
            "once (memory_limit, names=...).",
        ) from None
    # numpy's own ways to the address take three times as long as all the rest here.
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(room.data)) % ALIGNMENT_BYTES
    return room[offset : offset + size_bytes]


class TensorMemory:
    """The buffers of a plan: made when the first byte is about to come, given away when the last is there.

    Safe for threads as it is used: one worker makes a buffer, and it is taken when nobody fills it any more. There
    may be 10^5 buffers, and a lock would take as long as all the rest.
    """

    def __init__(self, sizes_bytes: Sequence[int]) -> None:
        self._sizes = sizes_bytes
        self._made: dict[int, npt.NDArray[np.uint8] | None] = {}  # None: it was taken
        self._dropped = False

    def view(self, number: int) -> memoryview:
        """The buffer's bytes, for whoever fills them."""
        if number not in self._made:
            self._made[number] = allocate(self._sizes[number])
        made = self._made[number]
        assert made is not None
        return made.data

    def take(self, number: int) -> "npt.NDArray[np.uint8]":
        """The buffer, which from here on is the caller's alone; an empty one was never filled.

        Raises Cancelled where it was dropped.
        """
        made = self._made.get(number)
        if made is None and self._dropped:
            raise Cancelled
        self._made[number] = None
        return made if made is not None else allocate(self._sizes[number])

    def drop(self) -> None:
        """Let go of all that was not taken."""
        self._dropped = True
        self._made.clear()
