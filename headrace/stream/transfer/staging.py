"""Scratch memory for bytes that cannot be received where they go: bounded, and used again."""

import threading

DEFAULT_STAGING_BYTES = 64 << 20


class Staging:
    """Reserve first, then take a buffer; release gives both back. Safe for threads.

    A reservation larger than the limit is granted when it is the only one: a chunk is never refused for ever.
    """

    def __init__(self, limit_bytes: int | None = DEFAULT_STAGING_BYTES) -> None:
        """Args: limit_bytes: None means no limit."""
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._reserved = 0
        self._free: list[bytearray] = []

    def reserve(self, size: int) -> bool:
        """Whether there is room for `size` more bytes; if so they are the caller's until released."""
        with self._lock:
            if self._limit_bytes is not None and self._reserved and self._reserved + size > self._limit_bytes:
                return False
            self._reserved += size
            return True

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` reserved bytes; what it holds is undefined."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if len(buffer) >= size:
                    return self._free.pop(number)
            if self._free:
                self._free.pop()  # too small: makes room for one that serves
        return bytearray(size)

    def release(self, size: int, buffer: bytearray | None) -> None:
        """Give back a reservation, and its buffer if one was taken."""
        with self._lock:
            self._reserved -= size
            if buffer is not None:
                self._free.append(buffer)
