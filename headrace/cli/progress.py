"""How a transfer's progress is shown: a bar on a terminal, a line now and then elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

LINE_INTERVAL_S = 5.0


@contextmanager
def transfer_progress(
    total_bytes: int, verb: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """A function to tell of bytes that have been transferred, from any thread.

    Args:
        verb: what is being done ("pushing").
        clock: seconds that only grow.
    """
    if stream.isatty():
        from tqdm import tqdm

        lock = threading.Lock()
        with tqdm(
            total=total_bytes, desc=verb, unit="B", unit_scale=True, file=stream, dynamic_ncols=True
        ) as bar:

            def advance(count: int) -> None:
                with lock:
                    bar.update(count)

            yield advance
    else:
        yield _LineWriter(total_bytes, verb, stream, clock).advance


@contextmanager
def counting(what: str, stream: TextIO) -> Iterator[Callable[[int], None]]:
    """A function to tell a number that grows, shown on a terminal alone and wiped out at the end."""
    shown = False

    def show(count: int) -> None:
        nonlocal shown
        if stream.isatty():
            shown = True
            print(f"\r{count:,} {what}", end="", file=stream, flush=True)

    try:
        yield show
    finally:
        if shown:
            print("\r\x1b[K", end="", file=stream, flush=True)


def decimal_size(size_bytes: int) -> str:
    """A size for a person, in powers of 1000: "269.1 MB"."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


class _LineWriter:
    def __init__(self, total_bytes: int, verb: str, stream: TextIO, clock: Callable[[], float]) -> None:
        self._total, self._verb, self._stream, self._clock = total_bytes, verb, stream, clock
        self._lock = threading.Lock()
        self._done = 0
        self._last_line_at = clock()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = self._clock()
            if now - self._last_line_at < LINE_INTERVAL_S:
                return
            self._last_line_at = now
            share = 100 * self._done // max(self._total, 1)
            line = f"{self._verb}: {decimal_size(self._done)} of {decimal_size(self._total)} ({share} %)"
            print(line, file=self._stream, flush=True)
