"""Which files of a folder are uploaded, and in which order. Looks at names and sizes only."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.source.files import CONFIG_NAME


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
        left_out: names (folders with a slash) that are not: dot files, dot folders, linked folders, and what
            is no regular file.
    """

    files: tuple[LocalFile, ...]
    left_out: tuple[str, ...]


def find_files(folder: Path) -> FolderFiles:
    """Walk the folder. Linked files are followed (hub caches consist of them), linked folders are not.

    Raises OSError for a folder or file that cannot be read.
    """
    files: list[LocalFile] = []
    left_out: list[str] = []

    def visit(directory: Path, prefix: str) -> None:
        for entry in os.scandir(directory):
            name = prefix + entry.name
            if entry.is_dir():
                if entry.name.startswith(".") or entry.is_symlink():
                    left_out.append(name + "/")
                else:
                    visit(Path(entry.path), name + "/")
            elif entry.name.startswith(".") or not entry.is_file():
                left_out.append(name)
            else:
                files.append(LocalFile(Path(entry.path), name, entry.stat().st_size))

    visit(folder, "")
    return FolderFiles(tuple(sorted(files, key=lambda file: file.name)), tuple(sorted(left_out)))


def upload_stages(files: Sequence[LocalFile]) -> list[list[LocalFile]]:
    """The order of uploading: each stage is complete before the next begins.

    Weights first, config.json last: a prefix is taken for a model only when all of it is there.
    """
    weights = [file for file in files if file.name.endswith(".safetensors")]
    last = [file for file in files if file.name == CONFIG_NAME]
    others = [file for file in files if file not in weights and file not in last]
    return [stage for stage in (weights, others, last) if stage]
