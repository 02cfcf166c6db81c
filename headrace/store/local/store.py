"""Folders on local and shared file systems. Files are read, not mapped: a mapped file that is
rewritten would change under the weights, or kill the process."""

import os
import stat
from collections.abc import Callable, Iterator

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.errors import AccessDenied, NotFound, StoreError, TransientError, Truncated
from headrace.store.folder_entry import EntryKind, kind_of
from headrace.store.local.file import AGAIN, FILE_REMEDY, changed_file, file_error, file_version


class LocalStore:
    """One folder."""

    def __init__(
        self, source: ModelSource, on_unreadable: Callable[[StoreError], None] | None = None
    ) -> None:
        """Args: on_unreadable: told of a folder below that this user may not read, which `list_below` then leaves out.

        None raises that error.
        """
        self.source = source
        self._on_unreadable = on_unreadable

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
                elif kind is EntryKind.FILE and (found := _file(entry, name)) is not None:
                    objects.append(found)
        except OSError as error:
            raise file_error(error.filename or self.source.prefix, error) from None
        return Listing(
            tuple(sorted(objects, key=lambda item: item.name)),
            tuple(sorted(folders)),
            tuple(sorted(broken_links)),
        )

    def list_below(self, folder: str = "") -> Iterator[ObjectInfo]:
        """See ListsBelow.list_below. Links are followed, also to folders; none of them is visited inside itself."""
        top = os.path.join(self.source.prefix, folder)  # noqa: PTH118
        if not folder or os.path.isdir(top):  # noqa: PTH112
            yield from self._walk(top, f"{folder}/" if folder else "", frozenset())

    def _walk(self, folder: str, above: str, around: frozenset[tuple[int, int]]) -> Iterator[ObjectInfo]:
        """The files below a folder; `around` are the folders that it lies in, by device and number."""
        try:
            facts = os.stat(folder)  # noqa: PTH116
            here = (facts.st_dev, facts.st_ino)
            if here in around:
                return
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                name = above + os.fsencode(entry.name).decode(errors="replace")
                kind = kind_of(entry)
                if kind is EntryKind.FOLDER:
                    yield from self._walk(entry.path, name + "/", around | {here})
                elif kind is EntryKind.FILE and (found := _file(entry, name)) is not None:
                    yield found
        except OSError as error:
            if around and isinstance(error, FileNotFoundError) and error.filename == folder:
                return  # it has gone since the folder around it was read
            told = file_error(error.filename or folder, error)
            if self._on_unreadable is None or not around or not isinstance(told, AccessDenied):
                raise told from None
            self._on_unreadable(told)

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        key = os.path.join(self.source.prefix, name)  # noqa: PTH118
        try:
            # A pipe would hold an open() that waits for its other end.
            descriptor = os.open(key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise file_error(key, error) from None
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise NotFound(key, "It is not a file.", remedy=FILE_REMEDY)
            prefix = os.pread(descriptor, first_bytes, 0)
            if file_version(os.fstat(descriptor)) != file_version(facts):
                raise TransientError(key, "The file was written to while it was looked at.")
        except OSError as error:
            raise file_error(key, error) from None
        finally:
            os.close(descriptor)
        item = ObjectInfo(key, name, facts.st_size, file_version(facts), int(facts.st_mtime))
        return Found(item, prefix)

    def open_reader(self) -> "LocalReader":
        """Reads files through its own descriptors."""
        return LocalReader()


def _file(entry: os.DirEntry[str], name: str) -> ObjectInfo | None:
    """The file; None where it has gone since its folder was read, as what others write aside does."""
    try:
        facts = entry.stat()
    except FileNotFoundError:
        return None
    return ObjectInfo(entry.path, name, facts.st_size, file_version(facts), int(facts.st_mtime))


class LocalReader:
    """Positioned reads of listed files. Keeps the last file open."""

    def __init__(self) -> None:
        self._opened: tuple[str, str] | None = None  # key and version
        self._descriptor = -1

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        try:
            descriptor = self._open(item)
            while len(view := target.next_view()):
                count = os.preadv(descriptor, [view], start + target.received)
                if count == 0:
                    raise Truncated(
                        item.key, f"The file ended after {start + target.received:,} bytes.", remedy=AGAIN
                    )
                target.received += count
            if file_version(facts := os.fstat(descriptor)) != item.version:
                raise changed_file(item, "rewritten while it was read", facts)
        except OSError as error:
            self.close()
            raise file_error(item.key, error) from None

    def _open(self, item: ObjectInfo) -> int:
        if self._opened != (item.key, item.version):
            self.close()
            self._descriptor = os.open(item.key, os.O_RDONLY | os.O_CLOEXEC)
            # Twice the read-ahead: three times the speed of a cold disk that few threads read from.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._opened = item.key, item.version
            if file_version(facts := os.fstat(self._descriptor)) != item.version:
                raise changed_file(item, "replaced after it was listed", facts)
        return self._descriptor

    def abort(self) -> None:
        """See Reader.abort: a read of a file ends by itself."""

    def close(self) -> None:
        """See Reader.close."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._opened, self._descriptor = None, -1
