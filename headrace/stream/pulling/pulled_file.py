"""Fetching one object into a file: written aside, resumed where it was cut off, under its name only when whole."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader, Target
from headrace.store.errors import Corrupt
from headrace.stream.pulling.record import has_strong_version

_BLOCK_BYTES = 4 << 20


def fetch_to(
    reader: Reader,
    item: ObjectInfo,
    path: Path,
    on_position: Callable[[int], None] = lambda _bytes: None,
    prove: Callable[[Path], None] | None = None,
) -> None:
    """The object's bytes at `path`; its folders are made.

    Args:
        on_position: told how many bytes are there, those of an earlier try included.
        prove: looks at the whole file before it gets its name; what it refuses with Corrupt is fetched from the
            beginning next time.

    Raises:
        TransientError: worth calling again, which goes on from what is there.
        StoreError: final.
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _file_aside(item, path) as (descriptor, aside):
        at = os.fstat(descriptor).st_size
        on_position(at)
        buffer = memoryview(bytearray(min(_BLOCK_BYTES, item.size_bytes)))
        while at < item.size_bytes:
            block = buffer[: min(len(buffer), item.size_bytes - at)]
            target = Target([block])
            try:
                reader.read_into(item, at, target)
            finally:
                _write(descriptor, block[: target.received])
            at += len(block)
            on_position(at)
        assert os.fstat(descriptor).st_size == item.size_bytes
        if prove is not None:
            try:
                prove(aside)
            except Corrupt:
                aside.unlink()
                raise
        aside.replace(path)


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def _file_aside(item: ObjectInfo, path: Path) -> Iterator[tuple[int, Path]]:
    """A file beside `path` that what comes is appended to: what an earlier try left, or a new one.

    Another process that is at the same object holds that one: then a file of our own, which a failure removes.
    """
    digest = hashlib.sha256(
        f"{item.key}\0{item.size_bytes}\0{item.version}".encode(errors="replace")
    ).hexdigest()
    aside = path.parent / f".{digest[:24]}.part"
    if has_strong_version(item):
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if _is_ours(descriptor, aside, item):
            try:
                yield descriptor, aside
            finally:
                os.close(descriptor)
            return
        os.close(descriptor)
    descriptor, name = tempfile.mkstemp(prefix=".new-", suffix=".part", dir=path.parent)
    os.fchmod(descriptor, 0o644)
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)


def _is_ours(descriptor: int, aside: Path, item: ObjectInfo) -> bool:
    """Lock the file; False where another holds it, has renamed it meanwhile, or where it cannot be a beginning."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = os.fstat(descriptor)
        return os.stat(aside).st_ino == facts.st_ino and facts.st_size <= item.size_bytes  # noqa: PTH116
    except OSError:  # held by another, or gone: both end in a file of our own
        return False
