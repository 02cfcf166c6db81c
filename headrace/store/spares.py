"""Open connections that a look-up leaves behind, for the next one who needs one."""

import threading
import weakref
from typing import Generic, TypeVar

from headrace.store.base import Reader

_KEPT = 16

AnyReader = TypeVar("AnyReader", bound=Reader)


class Spares(Generic[AnyReader]):
    """A few readers, each with its connection; they are closed when this goes. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: list[AnyReader] = []
        weakref.finalize(self, _close_all, self._readers)

    def take(self) -> AnyReader | None:
        """One of them, for the caller alone."""
        with self._lock:
            return self._readers.pop() if self._readers else None

    def give(self, reader: AnyReader) -> None:
        """Leave a reader that nobody uses now."""
        with self._lock:
            if len(self._readers) < _KEPT:
                self._readers.append(reader)
                return
        reader.close()


def _close_all(readers: list[AnyReader]) -> None:
    for reader in readers:
        reader.close()
