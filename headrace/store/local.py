"""Folders on local and shared file systems. Files are read, not mapped: a mapped file that is
rewritten would change under the weights, or kill the process."""

import errno
import os
import stat
from pathlib import Path

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.errors import AccessDenied, Changed, NotFound, StoreError, TransientError, Truncated
from headrace.store.folder_entry import EntryKind, kind_of
from headrace.store.versions import utc_text

_AGAIN = "Start again once the copy is complete; a load never mixes two versions."
_FILE_REMEDY = "Name a file, or give the folder as a model."


class LocalStore:
    """One folder."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source

    @property
    def identity(self) -> str:
        """The folder's absolute path."""
        return self.source.prefix

    def list(self) -> Listing:
        """The folder's files (symbolic links followed, as hub caches use them) and folders."""
        objects: list[ObjectInfo] = []
        folders: list[str] = []
        broken_links: list[str] = []
        try:
            for entry in os.scandir(self.source.prefix):
                # A name that is not UTF-8 may stand in a message, not in a model.
                name = os.fsencode(entry.name).decode(errors="replace")
                kind = kind_of(entry)
                if kind is EntryKind.FOLDER:
                    folders.append(name)
                elif kind is EntryKind.BROKEN_LINK:
                    broken_links.append(name)
                elif kind is EntryKind.FILE:
                    facts = entry.stat()
                    objects.append(
                        ObjectInfo(entry.path, name, facts.st_size, _version(facts), int(facts.st_mtime))
                    )
        except OSError as error:
            raise _translated(error.filename or self.source.prefix, error) from None
        return Listing(
            tuple(sorted(objects, key=lambda item: item.name)),
            tuple(sorted(folders)),
            tuple(sorted(broken_links)),
        )

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        key = os.path.join(self.source.prefix, name)  # noqa: PTH118
        try:
            # A pipe would hold an open() that waits for its other end.
            descriptor = os.open(key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _translated(key, error) from None
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise NotFound(key, "It is not a file.", remedy=_FILE_REMEDY)
            prefix = os.pread(descriptor, first_bytes, 0)
            if _version(os.fstat(descriptor)) != _version(facts):
                raise TransientError(key, "The file was written to while it was looked at.")
        except OSError as error:
            raise _translated(key, error) from None
        finally:
            os.close(descriptor)
        item = ObjectInfo(key, name, facts.st_size, _version(facts), int(facts.st_mtime))
        return Found(item, prefix)

    def open_reader(self) -> "LocalReader":
        """Reads files through its own descriptors."""
        return LocalReader()


class LocalReader:
    """Positioned reads of listed files. Keeps the last file open."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._descriptor = -1

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        try:
            descriptor = self._open(item)
            while len(view := target.next_view()):
                count = os.preadv(descriptor, [view], start + target.received)
                if count == 0:
                    raise Truncated(
                        item.key, f"The file ended after {start + target.received:,} bytes.", remedy=_AGAIN
                    )
                target.received += count
            if _version(facts := os.fstat(descriptor)) != item.version:
                raise _changed(item, "rewritten while it was read", facts)
        except OSError as error:
            self.close()
            raise _translated(item.key, error) from None

    def _open(self, item: ObjectInfo) -> int:
        if self._key != item.key:
            self.close()
            self._descriptor = os.open(item.key, os.O_RDONLY | os.O_CLOEXEC)
            self._key = item.key
            if _version(facts := os.fstat(self._descriptor)) != item.version:
                raise _changed(item, "replaced after it was listed", facts)
        return self._descriptor

    def abort(self) -> None:
        """See Reader.abort: a read of a file ends by itself."""

    def close(self) -> None:
        """See Reader.close."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._key, self._descriptor = None, -1


def _version(facts: os.stat_result) -> str:
    return f"{facts.st_dev}-{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"


def _changed(item: ObjectInfo, how: str, now: os.stat_result) -> Changed:
    # The last part of a version is when the file was written, to the nanosecond: a second may be the same.
    listed_s, now_s = int(item.version.rpartition("-")[2]) / 1e9, now.st_mtime_ns / 1e9
    return Changed(
        item.key,
        f"The file was {how}. Listed: {_facts(item.size_bytes, listed_s)}; now {_facts(now.st_size, now_s)}.",
        remedy=_AGAIN,
    )


def _facts(size_bytes: int, written_s: float) -> str:
    return f"{size_bytes:,} bytes, written {utc_text(written_s, fraction=True)}"


def _translated(path: str, error: OSError) -> StoreError:
    if isinstance(error, FileNotFoundError):
        return NotFound(path, "There is no such file or folder.", remedy="Check the path.")
    if error.errno == errno.ELOOP:
        return NotFound(path, "The link leads in a circle.", remedy="Mend the link.")
    if error.errno == errno.ENXIO:  # what opening a socket says
        return NotFound(path, "It is not a file.", remedy=_FILE_REMEDY)
    if isinstance(error, PermissionError):
        return AccessDenied(path, "This user may not read it.", remedy=f"Check who owns {Path(path).name}.")
    return TransientError(path, f"The read failed: {error.strerror}.")
