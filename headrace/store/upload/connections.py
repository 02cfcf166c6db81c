"""The connections of an upload: one for each thread that needs one, kept for the next, and ended all together."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from headrace.store.errors import StoreError, TransientError, Unreachable
from headrace.store.http.connection import HttpConnection

_ATTEMPTS = 6


class HasHttp(Protocol):
    """What knows how to ask one kind of store."""

    http: HttpConnection


AnyConnection = TypeVar("AnyConnection", bound=HasHttp)
Result = TypeVar("Result")


class UploadConnections(Generic[AnyConnection]):
    """Safe for many threads."""

    def __init__(self, connect: Callable[[], AnyConnection], uri: str, *, first_wait_s: float = 0.5) -> None:
        """Args:
        uri: of the destination, for messages.
        first_wait_s: before the second try of what failed; doubled each time.
        """
        self._connect, self._uri, self._first_wait_s = connect, uri, first_wait_s
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._used: set[AnyConnection] = set()
        self._spare: list[AnyConnection] = []

    def retried(self, request: Callable[[AnyConnection], Result]) -> Result:
        """Make a request, again where it may help. Raises StoreError, also when `abort` ended it."""
        attempts = 0
        while True:
            try:
                with self.taken() as connection:
                    return request(connection)
            except (TransientError, Unreachable) as error:
                attempts += 1
                if not self.may_retry(error, attempts):
                    raise

    def may_retry(self, error: TransientError | Unreachable, failures: int) -> bool:
        """Wait before another try; False where there were enough.

        Args:
            failures: in a row, 1 or more.

        Raises StoreError where `abort` ended it.
        """
        if failures >= _ATTEMPTS:
            return False
        asked_s = error.retry_after_s if isinstance(error, TransientError) else None
        self._ended.wait(max(self._first_wait_s * 2 ** (failures - 1), asked_s or 0.0))
        self.refuse_ended()
        return True

    @contextmanager
    def taken(self) -> Iterator[AnyConnection]:
        """One for this thread alone, known to `abort`. Raises StoreError where that ended it."""
        with self._changed:
            self.refuse_ended()
            connection = self._spare.pop() if self._spare else self._connect()
            self._used.add(connection)
        try:
            yield connection
        finally:
            with self._changed:
                self._used.discard(connection)
                self._spare.append(connection)
                self._changed.notify_all()

    def refuse_ended(self) -> None:
        """Raise StoreError where `abort` ended it."""
        if self._ended.is_set():
            raise StoreError(self._uri, "The upload was ended.")

    def abort(self) -> None:
        """End every request, and wait until none is under way; later ones are refused."""
        with self._changed:
            self._ended.set()
            for connection in self._used:
                connection.http.abort()
            while self._used:
                self._changed.wait()

    def close(self) -> None:
        """Close what is not in use."""
        with self._changed:
            for connection in self._spare:
                connection.http.close()
            self._spare.clear()
