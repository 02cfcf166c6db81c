"""Where pulled files go: the folder that a person names, and what the system says when it cannot be written."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.source.uri import BadSource, parse_folder_to_be
from headrace.store.errors import OPEN_FILES_REMEDY
from headrace.stream.library.arguments import path_text
from headrace.stream.variables import BadSetting

_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY)


class CannotWrite(HeadraceError):
    """A file or folder on this machine cannot be written."""


def destination(folder: str | os.PathLike[str]) -> Path:
    """The folder that is meant, which need not exist: file://, ~ and links are followed.

    Raises:
        BadSource: what names another place than a folder of this machine.
        BadSetting: no name.
    """
    text = path_text(folder)
    if not text.strip():
        raise BadSetting("The folder to pull to has no name.", remedy='Name one, or "." for this one.')
    if "://" in text and not text.lower().startswith("file://"):
        raise BadSource(
            f"{text:.300} is no folder of this machine, which a pull writes to.",
            remedy="Name a folder. `headrace push` copies one to a store.",
        )
    return Path(parse_folder_to_be(text).prefix)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Raises CannotWrite for the system's errors inside, naming what they name, or else `path`."""
    try:
        yield
    except OSError as error:
        remedy = (
            "Check its permissions and the room on the disk; the next pull goes on where this one stopped."
        )
        if error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = OPEN_FILES_REMEDY
        elif error.errno == errno.ENAMETOOLONG:
            remedy = (
                "Leave it out with --exclude (ignore_pattern in the library), or pull to a shorter folder."
            )
        elif error.errno in _IN_THE_WAY:
            remedy = "A file lies where a folder is needed, or a folder where a file: remove it, or pull to another."
        # Of a rename the second name is the one that a person knows.
        name = error.filename2 or error.filename or path
        raise CannotWrite(f"{name} cannot be written: {error.strerror or error}.", remedy=remedy) from None
