"""A target that hands its views out only as fast as a cap allows, so that body reads come in even pieces."""

import threading
import time
from collections.abc import Sequence

from headrace.store.base import Target
from headrace.stream.transfer.rate import TokenBucket


class Interrupted(Exception):
    """A read was ended from outside while it waited."""


class Limiter:
    """The cap of one transfer, shared by its workers."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._bucket = TokenBucket(bytes_per_s, time.monotonic())
        self._lock = threading.Lock()

    def take(self, wanted: int, interrupted: threading.Event) -> int:
        """How many of `wanted` bytes may come; waits until it is at least one. Raises Interrupted."""
        while True:
            with self._lock:
                granted, wait_s = self._bucket.take(wanted, time.monotonic())
            if granted:
                return granted
            if interrupted.wait(wait_s):
                raise Interrupted

    def give_back(self, unused: int) -> None:
        """Bytes that may come and did not."""
        with self._lock:
            self._bucket.give_back(unused)


class LimitedTarget(Target):
    """See Target; `next_view` waits for the limiter."""

    __slots__ = ("_at", "_granted", "_interrupted", "_limiter")

    def __init__(self, views: Sequence[memoryview], limiter: Limiter, interrupted: threading.Event) -> None:
        super().__init__(views)
        self._limiter, self._interrupted = limiter, interrupted
        self._granted = self._at = 0

    def next_view(self) -> memoryview:
        """The rest of the present view, or as much of it as may come now. Raises Interrupted."""
        view = super().next_view()
        left = self._granted - (self.received - self._at)
        self._at, self._granted = self.received, left
        if len(view) and left == 0:
            self._granted = left = self._limiter.take(len(view), self._interrupted)
        if not len(view) and left:
            self._limiter.give_back(left)
            self._granted = 0
        return view[:left] if len(view) > left else view
