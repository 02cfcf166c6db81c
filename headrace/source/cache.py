"""The metadata cache: a few small files per version of a model, never a weight.

An entry is a folder named by a hash of the place and of every file's name, size and version, so it is never
wrong and never changes: written aside, renamed into place, shared by any number of processes. The listing at
each start is what finds it, so a changed bucket is seen. Its folder's time is when it was last used;
headrace.source.cache_entries lists and removes entries by it.
"""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.source.objects import ObjectInfo

CHECKSUMS_NAME = "SHA256SUMS"
PLACE_NAME = "PLACE"  # the identity of the store's place, for a person
ASIDE_PREFIX = ".new-"  # of folders that are being written
GOING_PREFIX = ".old-"  # of folders that are being removed
_TRIES = 20
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST)
_USED_AGAIN_S = 3600.0
_logger = logging.getLogger(__name__)


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """$HEADRACE_CACHE, or `headrace` in the platform's cache folder.

    A user without a home (a container's random id) has none: the path then is one that nothing can be in.
    """
    try:
        if environ.get("HEADRACE_CACHE"):
            return Path(environ["HEADRACE_CACHE"]).expanduser()
        if environ.get("XDG_CACHE_HOME"):
            return Path(environ["XDG_CACHE_HOME"]) / "headrace"
        return Path("~/.cache/headrace").expanduser()
    except RuntimeError:
        return Path(os.devnull) / "headrace"


def metadata_root() -> Path:
    """Where the entries are."""
    return cache_root() / "metadata"


@dataclass(frozen=True, slots=True)
class MetadataCache:
    """The entry of one version of one model.

    Attributes:
        place: the identity of where it comes from.
    """

    folder: Path
    items: tuple[ObjectInfo, ...]
    place: str

    @classmethod
    def of(cls, identity: str, items: Sequence[ObjectInfo]) -> "MetadataCache":
        """The entry for these files of the place that `identity` names; it may not exist yet."""
        digest = hashlib.sha256(identity.encode())
        for item in sorted(items, key=lambda item: item.name):
            digest.update(f"\0{item.name}\0{item.size_bytes}\0{item.version}".encode())
        return cls(metadata_root() / digest.hexdigest()[:32], tuple(items), identity)

    def read(self) -> dict[str, bytes] | None:
        """All files of the entry, or None where it does not exist, cannot be read or is not what was written.

        Files without a version (a store that sends no ETag) are never taken from the cache.
        """
        if not self._cacheable:
            return None
        try:
            files = {item.name: (self.folder / item.name).read_bytes() for item in self.items}
            checksums = (self.folder / CHECKSUMS_NAME).read_text()
        except (OSError, UnicodeDecodeError):
            return None
        if checksums != _checksums(files):
            return None
        self._note_use()
        return files

    def _note_use(self) -> None:
        with contextlib.suppress(OSError):  # a cache that is read-only, or an entry that is being removed
            if time.time() - self.folder.stat().st_mtime > _USED_AGAIN_S:
                os.utime(self.folder)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Make the entry. Another process may have made it meanwhile: then nothing is left to do.

        Raises OSError where the cache cannot be written.
        """
        if not self._cacheable:
            return
        assert files.keys() == {item.name for item in self.items}
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=ASIDE_PREFIX, dir=self.folder.parent))
        try:
            aside.chmod(0o755)  # for others who share the cache, as far as the folder around it lets them
            for name, data in files.items():
                assert {"", ".", ".."}.isdisjoint(name.split("/")), name
                (aside / name).parent.mkdir(exist_ok=True)
                (aside / name).write_bytes(data)
            (aside / PLACE_NAME).write_text(self.place)
            (aside / CHECKSUMS_NAME).write_text(_checksums(files))
            self._put_in_place(aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _put_in_place(self, aside: Path) -> None:
        """Rename the folder to the entry's, unless that is there; what is there and broken is taken away first.

        Others may do the same meanwhile, and take away or break what was put there: then once more, but not for ever.
        """
        for left in reversed(range(_TRIES)):
            try:
                aside.rename(self.folder)
                return
            except OSError as error:
                if error.errno not in _IN_THE_WAY or left == 0:
                    raise
            if self.read() is not None:
                return
            take_away(self.folder)

    @property
    def _cacheable(self) -> bool:
        return all(item.version and not item.version.startswith("W/") for item in self.items)

    def write_aside(self, files: Mapping[str, bytes]) -> threading.Thread:
        """`write` in a thread, off the way to the first token; a cache that cannot be written is a warning."""

        def work() -> None:
            from headrace.source.cache_entries import keep_bounded

            try:
                self.write(files)
                keep_bounded(self.folder.parent)
            except OSError as error:
                _logger.warning(
                    "The metadata cache %s cannot be written (%s): the next start fetches again.",
                    self.folder.parent,
                    error.strerror,
                )

        thread = threading.Thread(target=work, name="metadata-cache")
        thread.start()
        return thread


def take_away(folder: Path) -> bool:
    """Remove an entry, out of its place at once. Whether it was there still. Raises OSError where it may not be removed."""
    aside = Path(tempfile.mkdtemp(prefix=GOING_PREFIX, dir=folder.parent))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:  # another process was first
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _checksums(files: Mapping[str, bytes]) -> str:
    """One line for each file, so that an entry that was cut off or written to is known."""
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
