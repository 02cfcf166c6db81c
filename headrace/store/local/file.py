"""One local file: what tells its versions apart, and what the system's errors mean."""

import errno
import os
from pathlib import Path

from headrace.source.objects import ObjectInfo
from headrace.store.errors import (
    OPEN_FILES_REMEDY,
    AccessDenied,
    Changed,
    NotFound,
    StoreError,
    TransientError,
)
from headrace.store.versions import utc_text

AGAIN = "Start again once the copy is complete; a load never mixes two versions."
FILE_REMEDY = "Name a file, or give the folder as a model."


def file_version(facts: os.stat_result) -> str:
    """What changes when the content does: identity, size and time of the last write."""
    return f"{facts.st_dev}-{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"


def changed_file(item: ObjectInfo, how: str, now: os.stat_result) -> Changed:
    """The error of a listed file that is another one now; it names both versions."""
    # The last part of a version is when the file was written, to the nanosecond: a second may be the same.
    listed_s, now_s = int(item.version.rpartition("-")[2]) / 1e9, now.st_mtime_ns / 1e9
    return Changed(
        item.key,
        f"The file was {how}. Listed: {_facts(item.size_bytes, listed_s)}; now {_facts(now.st_size, now_s)}.",
        remedy=AGAIN,
    )


def _facts(size_bytes: int, written_s: float) -> str:
    return f"{size_bytes:,} bytes, written {utc_text(written_s, fraction=True)}"


def file_error(path: str, error: OSError) -> StoreError:
    """The typed error for what the system raised."""
    if isinstance(error, FileNotFoundError):
        return NotFound(path, "There is no such file or folder.", remedy="Check the path.")
    if error.errno == errno.ELOOP:
        return NotFound(path, "The link leads in a circle.", remedy="Mend the link.")
    if error.errno == errno.ENXIO:  # what opening a socket says
        return NotFound(path, "It is not a file.", remedy=FILE_REMEDY)
    if isinstance(error, PermissionError):
        return AccessDenied(path, "This user may not read it.", remedy=f"Check who owns {Path(path).name}.")
    remedy = OPEN_FILES_REMEDY if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return TransientError(path, f"The read failed: {error.strerror}.", remedy=remedy)
