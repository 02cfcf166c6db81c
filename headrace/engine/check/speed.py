"""How fast do bytes come? A timed read of a few megabytes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.engine.check.finding import Findings, ok, tried
from headrace.engine.check.place import Place
from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, read_range

# Rounds of so many connections and bytes on each: the next one only where this took little time.
ROUNDS = ((1, 256 << 10), (4, 1 << 20), (8, 2 << 20))
ENOUGH_S = 0.5


@dataclass(frozen=True, slots=True)
class Rate:
    """What the last round gave."""

    bytes_per_s: float
    size_bytes: int
    connections: int


def measure(place: Place, item: ObjectInfo, clock: Callable[[], float] = time.monotonic) -> Rate:
    """Read from the beginning of an object on ever more connections. Raises StoreError."""
    rate = Rate(0.0, 0, 0)
    for connections, length in ROUNDS:
        spans = _spans(item.size_bytes, connections, length)
        started = clock()
        waits = [place.pool.map(_reading(start, count), [item])[0] for start, count in spans]
        for wait in waits:
            wait()
        seconds = max(clock() - started, 1e-6)
        total = sum(count for _, count in spans)
        if total / seconds > rate.bytes_per_s:
            rate = Rate(total / seconds, total, len(spans))
        if seconds > ENOUGH_S or total < connections * length:
            break
    return rate


def _spans(size_bytes: int, connections: int, length: int) -> list[tuple[int, int]]:
    """Ranges (start, length) that lie one after another within the object."""
    starts = range(0, min(size_bytes, connections * length), length)
    return [(start, min(length, size_bytes - start)) for start in starts]


def _reading(start: int, length: int) -> Callable[[Reader, ObjectInfo], None]:
    def read(reader: Reader, item: ObjectInfo) -> None:
        read_range(reader, item, start, length)

    return read


def check_speed(place: Place, items: Sequence[ObjectInfo], bytes_to_read: int) -> Findings[None]:
    """The rate, and how long the weights would take at it."""
    largest = max(items, key=lambda item: item.size_bytes)
    rate = yield from tried("speed", lambda: measure(place, largest))
    if rate is None:
        return
    seconds = bytes_to_read / rate.bytes_per_s if rate.bytes_per_s else 0.0
    yield ok(
        "speed",
        f"{rate.bytes_per_s / 1e6:,.0f} MB/s in a read of {rate.size_bytes:,} bytes on {rate.connections} "
        f"connection{'s' if rate.connections > 1 else ''}; at this rate the weights take {seconds:.1f} s.",
        bytes_per_s=round(rate.bytes_per_s),
        sample_bytes=rate.size_bytes,
        connections=rate.connections,
        estimated_s=round(seconds, 3),
    )
