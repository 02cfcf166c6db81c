"""The checksums of a file's blocks, as a manifest holds them, computed while the file is read for something else."""

from headrace.source.manifest import ALGORITHM, BLOCK_BYTES, ObjectSums
from headrace.store.crc import CRCS


class BlockSummer:
    """Takes a file's bytes in order, in any pieces."""

    def __init__(self) -> None:
        self._crc = CRCS[ALGORITHM]
        self._sums: list[int] = []
        self._size = 0

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        rest = memoryview(data)
        while len(rest):
            room = BLOCK_BYTES - self._size % BLOCK_BYTES
            piece, rest = rest[:room], rest[room:]
            if room == BLOCK_BYTES:
                self._sums.append(0)
            self._sums[-1] = self._crc.of([piece], self._sums[-1])
            self._size += len(piece)

    def sums(self) -> ObjectSums:
        """Of what has been taken in so far."""
        return ObjectSums(self._size, BLOCK_BYTES, tuple(self._sums))
