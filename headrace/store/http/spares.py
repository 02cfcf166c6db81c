"""Open connections that a look-up leaves behind, for the next one who needs one."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from headrace.store.base import Reader
from headrace.store.errors import NotFound

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

    @contextmanager
    def lent(self, reader: AnyReader) -> Iterator[AnyReader]:
        """Use a reader and leave it here; what fails closes it, but that something is not there is an answer."""
        try:
            yield reader
        except NotFound:
            self.give(reader)
            raise
        except BaseException:
            reader.close()
            raise
        self.give(reader)


def _close_all(readers: list[AnyReader]) -> None:
    for reader in readers:
        reader.close()
