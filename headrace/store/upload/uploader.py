"""What an upload asks of a store. Each kind of store that can be written to has one file with its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.source.uri import ModelSource
from headrace.store.crc import Crc
from headrace.store.errors import Unsupported
from headrace.store.stored_digest import CHECKSUM_KEY as CHECKSUM_KEY
from headrace.store.upload.plan import LocalFile

if TYPE_CHECKING:
    from headrace.store.s3.settings import S3Settings


@dataclass(frozen=True, slots=True)
class FileSums:
    """What was computed of a file before it is sent.

    Attributes:
        sha256: in hexadecimal.
        crc: of the whole file, of the kind that `Uploader.crc` names; None where that is None.
    """

    sha256: str
    crc: int | None = None


class Uploader(Protocol):
    """Writes files to one bucket and prefix.

    Names are relative to the prefix. `put_file` may be called from several threads at once, everything else belongs
    to the thread that made it.
    """

    destination: ModelSource

    @property
    def crc(self) -> Crc | None:
        """The kind of CRC of the whole object that the store is told, checks and keeps; None where it is told none."""

    def make_bucket(self) -> bool:
        """Make the bucket unless it is there; whether it was made. Raises StoreError."""

    def sizes(self) -> dict[str, int]:
        """Name → size in bytes of everything below the prefix, in all depths.

        Raises:
            NotFound: there is no such bucket.
            StoreError: as the taxonomy says.
        """

    def holds(self, file: LocalFile, sums: FileSums) -> bool:
        """Whether the store has this very file: its size and its SHA-256 (see CHECKSUM_KEY). Raises StoreError."""

    def put_file(self, file: LocalFile, sums: FileSums, on_bytes: Callable[[int], None]) -> None:
        """Send a file, with its SHA-256 in the object's metadata, and prove that the store has all of it.

        What fails on the way is tried again here.

        Args:
            on_bytes: told of bytes that have gone, from any thread; negative when some are sent again.

        Raises:
            Truncated, Corrupt: what the store holds is not the file.
            StoreError: as the taxonomy says; also when `abort` ended it. Nothing half-uploaded stays behind.
        """

    def abort(self) -> None:
        """End what other threads are putting, soon, and wait until nothing of it is left."""

    def close(self) -> None:
        """Give connections back to the system."""


def object_key(destination: ModelSource, name: str) -> str:
    """The key of a file under the prefix."""
    return f"{destination.prefix}/{name}" if destination.prefix else name


def can_be_written(source: ModelSource) -> bool:
    """Whether there is an uploader for this kind of store."""
    return source.scheme in ("s3", "gs", "az", "file")


def open_uploader(destination: ModelSource, settings: "S3Settings | None" = None) -> Uploader:
    """The uploader of the store that a destination names.

    Args:
        settings: S3's, where they are not those of this process's environment.

    Raises:
        Unsupported: this kind of store can be read from only.
        StoreError: settings that cannot work, or no credentials.
    """
    if destination.scheme == "s3":
        from headrace.store.s3.settings import resolve_s3_settings

        settings = settings or resolve_s3_settings()
        settings.frozen_credentials()  # missing ones are told before the uploader's libraries are loaded
        from headrace.store.s3.uploader import S3Uploader

        return S3Uploader(destination, settings)
    if destination.scheme == "gs":
        from headrace.store.gcs.settings import resolve_gcs_settings
        from headrace.store.gcs.sign_in import WRITE_SCOPE
        from headrace.store.gcs.uploader import GcsUploader

        return GcsUploader(destination, resolve_gcs_settings(scope=WRITE_SCOPE))
    if destination.scheme == "az":
        from headrace.store.azure.settings import resolve_azure_settings
        from headrace.store.azure.uploader import AzureUploader

        return AzureUploader(destination, resolve_azure_settings(destination))
    if destination.scheme == "file":
        from headrace.store.local.uploader import LocalUploader

        return LocalUploader(destination)
    raise Unsupported(
        destination.uri,
        f"{destination.scheme}:// can be read from, not written to.",
        remedy="Push to a bucket or a folder.",
    )
