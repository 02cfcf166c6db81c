"""The memory that a plan's destinations lie in: one view, or buffers made when their first byte is to be read."""

import threading
from collections.abc import Iterable

from headrace.stream.plan import Chunk
from headrace.stream.transfer.seams import Buffers


class OneMemory:
    """All destinations in one view; its owner keeps it."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def place(self, _buffer: int, start: int, size: int) -> memoryview:
        """Bytes [start, start + size)."""
        return self._view[start : start + size]

    def put(self, _buffer: int, start: int, source: memoryview) -> None:
        """Copy bytes to where they belong."""
        self._view[start : start + len(source)] = source

    def filled(self, sizes: dict[int, int]) -> None:
        """Nothing to let go of."""


class ManyBuffers:
    """Buffers on demand, each let go of when all of it is filled, so that its owner alone keeps it."""

    def __init__(self, make: Buffers, chunks: Iterable[Chunk]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._views: dict[int, memoryview] = {}
        self._left: dict[int, int] = {}
        for chunk in chunks:
            for piece in chunk.pieces:
                self._left[piece.buffer] = self._left.get(piece.buffer, 0) + piece.end - piece.start

    def place(self, buffer: int, start: int, size: int) -> memoryview:
        """Bytes [start, start + size) of a buffer, which is made if it is not there yet."""
        view = self._views.get(buffer)
        if view is None:
            with self._lock:
                view = self._views.get(buffer)
                if view is None:
                    view = self._views[buffer] = self._make(buffer)
        return view[start : start + size]

    def put(self, buffer: int, start: int, source: memoryview) -> None:
        """Copy bytes, as they were read, to where they belong."""
        if buffer not in self._views and self._left[buffer] == len(source):  # all of it: nobody else fills it
            self._make(buffer)[:] = source
        else:
            self.place(buffer, start, len(source))[:] = source

    def filled(self, sizes: dict[int, int]) -> None:
        """So many bytes, as read, of each of these buffers are in place."""
        with self._lock:
            for buffer, size in sizes.items():
                self._left[buffer] -= size
                if self._left[buffer] == 0:
                    del self._left[buffer]
                    self._views.pop(buffer, None)


Memory = OneMemory | ManyBuffers


def memory_of(memory: memoryview | Buffers, chunks: Iterable[Chunk]) -> Memory:
    """The one that fits."""
    return OneMemory(memory) if isinstance(memory, memoryview) else ManyBuffers(memory, chunks)
