"""ObjectStorageModel: one folder of pulled files that any number of processes on a host keep up to date."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import HeadraceError
from headrace.stream.library.arguments import path_text
from headrace.stream.pulling.pull import find_files, patterns, pull_found
from headrace.stream.pulling.record import RECORD_NAME, PullRecord
from headrace.stream.pulling.writing import destination, writing_to


class NothingPulled(HeadraceError):
    """No file came of what was asked for."""


class ObjectStorageModel:
    """Pulls a model's small files into `dst`, one process at a time; the others find them there.

    Each pull asks for the listing, so a changed bucket is seen: files that changed are fetched again, and files
    that were pulled before and are gone from the bucket are removed. The lock (`dst` + ".lock") is flock's, which
    not every shared file system passes on to other hosts.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        dst: str | os.PathLike[str],
        s3_credentials: object | None = None,
    ) -> None:
        """See headrace.stream.pulling.pull.pull_files."""
        self._model_path, self._credentials = path_text(model_path), s3_credentials
        self._dst = destination(dst)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Wait for the lock, and hold it until the with-block ends."""
        self._lock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises NothingPulled where the folder is still empty."""
        try:
            if error is None and not any(path.name != RECORD_NAME for path in self._files()):
                raise NothingPulled(
                    f"Nothing of {self._model_path} was pulled to {self._dst}.",
                    remedy="Check the path, and the patterns given to pull_files.",
                )
        finally:
            self._unlock()

    def pull_files(
        self,
        allow_pattern: Sequence[str] | str | None = None,
        ignore_pattern: Sequence[str] | str | None = None,
    ) -> None:
        """Bring what the patterns name up to date. Raises as headrace.pull_files."""
        allow, ignore = patterns(allow_pattern, "allow_pattern"), patterns(ignore_pattern, "ignore_pattern")
        with self._locked():
            found = find_files(self._model_path, self._credentials)
            with writing_to(self._dst):
                record = PullRecord.open(self._dst)
                for path in set(record.paths) - {file.path for file in found}:
                    record.remove(path)
            pull_found(found, self._dst, allow, ignore)

    def _files(self) -> list[Path]:
        return list(self._dst.iterdir()) if self._dst.is_dir() else []

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._descriptor is not None:
            yield
            return
        self._lock()
        try:
            yield
        finally:
            self._unlock()

    def _lock(self) -> None:
        lock = Path(f"{self._dst}.lock")
        with writing_to(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)  # which gives the lock back
            self._descriptor = None
