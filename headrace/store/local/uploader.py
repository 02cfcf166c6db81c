"""Writing to a folder of a file system: each file is written aside and renamed into its place."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event

from headrace.source.uri import ModelSource
from headrace.store.base import list_below
from headrace.store.crc import Crc
from headrace.store.errors import Corrupt, NotFound, StoreError
from headrace.store.local.store import LocalStore
from headrace.store.upload.digest import sha256_of
from headrace.store.upload.plan import LocalFile
from headrace.store.upload.uploader import FileSums

_CHUNK_BYTES = 4 << 20


class LocalUploader:
    """See Uploader. A folder stands for a bucket; a file's own bytes tell whether it is the same."""

    def __init__(self, destination: ModelSource) -> None:
        self.destination = destination
        self._folder = Path(destination.prefix)
        self._ended = Event()
        self._mode = 0o666 & ~_umask()

    @property
    def crc(self) -> Crc | None:
        """A file system keeps none."""
        return None

    def make_bucket(self) -> bool:
        """See Uploader.make_bucket."""
        if self._folder.is_dir():
            return False
        try:
            self._folder.mkdir(parents=True)
        except OSError as error:
            raise self._failed(self._folder, error) from None
        return True

    def sizes(self) -> dict[str, int]:
        """See Uploader.sizes."""
        if not self._folder.is_dir():
            raise NotFound(str(self._folder), "There is no such folder.", remedy="Make it first.")
        return {item.name: item.size_bytes for item in list_below(LocalStore(self.destination))}

    def holds(self, file: LocalFile, sums: FileSums) -> bool:
        """See Uploader.holds."""
        path = self._folder / file.name
        try:
            return sha256_of(LocalFile(path, file.name, file.size_bytes)) == sums.sha256
        except OSError as error:
            raise self._failed(path, error) from None

    def put_file(self, file: LocalFile, sums: FileSums, on_bytes: Callable[[int], None]) -> None:
        """See Uploader.put_file."""
        path = self._folder / file.name
        aside = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(prefix=".headrace-push-", dir=path.parent)
            digest = hashlib.sha256()
            with open(descriptor, "wb") as out, open(file.path, "rb") as content:
                while chunk := content.read(_CHUNK_BYTES):
                    if self._ended.is_set():
                        raise StoreError(str(path), "The upload was ended.")
                    out.write(chunk)
                    digest.update(chunk)
                    on_bytes(len(chunk))
                os.fchmod(out.fileno(), self._mode)  # mkstemp's own is for secrets
                os.fsync(out.fileno())
            if digest.hexdigest() != sums.sha256:
                raise Corrupt(
                    str(path), "What was written is not what was read before.", remedy="Push again."
                )
            os.replace(aside, path)  # noqa: PTH105 - as it was made
            aside = ""
        except OSError as error:
            raise self._failed(path, error) from None
        finally:
            if aside:
                os.unlink(aside)  # noqa: PTH108

    @staticmethod
    def _failed(path: Path, error: OSError) -> StoreError:
        return StoreError(
            str(path), f"It cannot be written: {error.strerror or error}.", remedy="Check the folder."
        )

    def abort(self) -> None:
        """See Uploader.abort."""
        self._ended.set()

    def close(self) -> None:
        """See Uploader.close."""


def _umask() -> int:
    """What this process takes away from new files' permissions; there is no way to only look."""
    value = os.umask(0o022)
    os.umask(value)
    return value
