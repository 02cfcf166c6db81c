"""What an entry of a local folder is, where links may lead nowhere and names may be any bytes."""

import enum
import errno
import os


class EntryKind(enum.Enum):
    """What one finds by following links."""

    FILE = enum.auto()
    FOLDER = enum.auto()
    BROKEN_LINK = enum.auto()  # to nothing, or in a circle
    OTHER = enum.auto()  # a pipe, a socket, a device


def kind_of(entry: os.DirEntry[str]) -> EntryKind:
    """The kind. Raises OSError where it cannot be looked at; its `filename` is the entry's path."""
    try:
        if entry.is_dir():
            return EntryKind.FOLDER
        if entry.is_file():
            return EntryKind.FILE
        # is_file() says False, and nothing else, of a link whose target does not exist.
        broken = entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        broken = True
    return EntryKind.BROKEN_LINK if broken else EntryKind.OTHER


def shown_name(name: str) -> str:
    """The name for a person: bytes that are not UTF-8 as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
