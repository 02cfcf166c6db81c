"""Which files of a folder are uploaded, and in which order. Looks at names and sizes only."""

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.source.files import CONFIG_NAME
from headrace.store.folder_entry import EntryKind, kind_of, shown_name


class BadFileName(HeadraceError):
    """A file's name cannot be the key of an object."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to upload.

    Attributes:
        name: its path relative to the folder, with slashes; the object's key below the prefix.
    """

    path: Path
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """What a folder holds.

    Attributes:
        files: what is uploaded, sorted by name.
        left_out: names (folders with a slash) that are not: dot files, dot folders, linked folders, links that
            lead nowhere, and what is no regular file. For a person: what is not UTF-8 is escaped.
    """

    files: tuple[LocalFile, ...]
    left_out: tuple[str, ...]


def find_files(folder: Path) -> FolderFiles:
    """Walk the folder. Linked files are followed (hub caches consist of them), linked folders are not.

    Raises:
        BadFileName: a file that would be uploaded has a name that no key can hold.
        OSError: a folder or file cannot be read.
    """
    files: list[LocalFile] = []
    left_out: list[str] = []

    def visit(directory: Path, prefix: str) -> None:
        for entry in os.scandir(directory):
            name, kind = prefix + entry.name, kind_of(entry)
            hidden = entry.name.startswith(".")
            if kind is EntryKind.FOLDER:
                if hidden or entry.is_symlink():
                    left_out.append(shown_name(name) + "/")
                else:
                    visit(Path(entry.path), name + "/")
            elif hidden or kind is not EntryKind.FILE:
                left_out.append(shown_name(name))
            else:
                _check_name(entry.path, name)
                files.append(LocalFile(Path(entry.path), name, entry.stat().st_size))

    visit(folder, "")
    return FolderFiles(tuple(sorted(files, key=lambda file: file.name)), tuple(sorted(left_out)))


def _check_name(path: str, name: str) -> None:
    """Stores take keys of UTF-8; control characters survive neither a listing's XML nor a terminal."""
    if not _is_unicode(name):
        why = "is not UTF-8"
    elif any(unicodedata.category(character) == "Cc" for character in name):
        path, why = ascii(path)[1:-1], "holds a control character"
    else:
        return
    raise BadFileName(
        f"{path}: the file's name {why}, so it cannot be the key of an object.",
        remedy="Rename or remove the file; nothing was uploaded.",
    )


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a lone surrogate: Python's way of keeping a byte that is not UTF-8
        return False
    return True


def upload_stages(files: Sequence[LocalFile]) -> list[list[LocalFile]]:
    """The order of uploading: each stage is complete before the next begins.

    Weights first, config.json last: a prefix is taken for a model only when all of it is there.
    """
    weights = [file for file in files if file.name.endswith(".safetensors")]
    last = [file for file in files if file.name == CONFIG_NAME]
    others = [file for file in files if file not in weights and file not in last]
    return [stage for stage in (weights, others, last) if stage]
