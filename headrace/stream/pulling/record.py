"""Which version of which object lies in a folder of pulled files: a line of JSON for each, appended when it is whole."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from headrace.source.objects import ObjectInfo

RECORD_NAME = ".headrace-pulled.jsonl"


def has_strong_version(item: ObjectInfo) -> bool:
    """Whether equal versions promise equal bytes."""
    return bool(item.version) and not item.version.startswith("W/")


@dataclass(slots=True)
class PullRecord:
    """The record of one folder. Lines are short and appended whole, so that processes may share it."""

    folder: Path
    _known: dict[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> "PullRecord":
        """Read the record; the folder is made where there is none. Lines that are cut off count for nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        record = cls(folder)
        path = folder / RECORD_NAME
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                name, size, version = json.loads(line)
            except (ValueError, TypeError):
                continue
            if isinstance(name, str) and isinstance(size, int) and isinstance(version, str):
                record._known[name] = (size, version)
        return record

    @property
    def paths(self) -> list[str]:
        """What was pulled into the folder."""
        return [name for name, (size, _) in self._known.items() if size >= 0]

    def is_current(self, path: str, item: ObjectInfo) -> bool:
        """Whether this version of the object lies there, as far as record and size can tell."""
        if not has_strong_version(item) or self._known.get(path) != (item.size_bytes, item.version):
            return False
        file = self.folder / path
        return file.is_file() and file.stat().st_size == item.size_bytes

    def add(self, path: str, item: ObjectInfo) -> None:
        """This version lies there now."""
        self._append(path, item.size_bytes, item.version)

    def remove(self, path: str) -> None:
        """Delete a file that was pulled before, and forget it."""
        (self.folder / path).unlink(missing_ok=True)
        self._append(path, -1, "")

    def _append(self, path: str, size_bytes: int, version: str) -> None:
        self._known[path] = (size_bytes, version)
        line = json.dumps([path, size_bytes, version]) + "\n"
        descriptor = os.open(self.folder / RECORD_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
