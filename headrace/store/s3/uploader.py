"""Writing to S3 with s3transfer: large files in parts, each proved by the store's own answer."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from botocore.client import BaseClient
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.exceptions import CancelledError
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber

from headrace.source.uri import ModelSource
from headrace.store.crc import CRC32, Crc
from headrace.store.errors import NotFound, StoreError, Truncated
from headrace.store.s3.client import make_s3_client, store_error
from headrace.store.s3.error_table import BUCKET_NAME_REMEDY
from headrace.store.s3.settings import S3Settings
from headrace.store.s3.store import S3Store
from headrace.store.upload.plan import LocalFile
from headrace.store.upload.uploader import CHECKSUM_KEY, FileSums, object_key

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
_BUCKET_NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
PART_BYTES = 16 << 20
_CONNECTIONS = 8
_ATTEMPTS = 6


class S3Uploader:
    """See Uploader."""

    def __init__(self, destination: ModelSource, settings: S3Settings) -> None:
        self.destination, self._settings = destination, settings
        self._lock = threading.Lock()
        self._made: tuple[BaseClient, TransferManager] | None = None

    def _open(self) -> tuple[BaseClient, TransferManager]:
        """Made when it is first needed, which is after the listing that may have found the bucket's region."""
        with self._lock:
            if self._made is None:
                client = make_s3_client(
                    self._settings,
                    attempts=_ATTEMPTS,
                    connections=_CONNECTIONS,
                    bucket=self.destination.bucket,
                )
                config = TransferConfig(
                    multipart_threshold=PART_BYTES,
                    multipart_chunksize=PART_BYTES,
                    max_request_concurrency=_CONNECTIONS,
                )
                self._made = client, TransferManager(client, config)
            return self._made

    @property
    def _client(self) -> BaseClient:
        return self._open()[0]

    @property
    def crc(self) -> Crc | None:
        """See Uploader: none to stores that may not know checksums."""
        told = self._client.meta.config.request_checksum_calculation == "when_supported"
        return CRC32 if told else None

    def make_bucket(self) -> bool:
        """See Uploader.make_bucket."""
        bucket, settings = self.destination.bucket, self._settings
        # One attempt: a wrong endpoint is told at once, not after the retries that an upload deserves.
        client = make_s3_client(settings, attempts=1)
        with self._typed_errors(self.destination.uri):
            try:
                client.head_bucket(Bucket=bucket)
                return False
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                # The answer to a HEAD has no body that says why.
                if status == 400 and not _BUCKET_NAME.fullmatch(bucket):
                    raise NotFound(
                        f"s3://{bucket}",
                        "No bucket can have this name.",
                        remedy=BUCKET_NAME_REMEDY,
                        status=status,
                    ) from None
                if status != 404:
                    raise
            # AWS: us-east-1 is named by naming none.
            place = {} if settings.region == "us-east-1" else {"LocationConstraint": settings.region}
            client.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": place} if place else {}))
        return True

    def sizes(self) -> dict[str, int]:
        """See Uploader.sizes."""
        return {item.name: item.size_bytes for item in S3Store(self.destination, self._settings).list_below()}

    def holds(self, file: LocalFile, sums: FileSums) -> bool:
        """See Uploader.holds."""
        with self._typed_errors(self.destination.uri_of(file.name)):
            head = self._client.head_object(Bucket=self.destination.bucket, Key=self._key(file))
        size: int = head["ContentLength"]
        stored: str | None = head["Metadata"].get(CHECKSUM_KEY)
        return size == file.size_bytes and stored == sums.sha256

    def put_file(self, file: LocalFile, sums: FileSums, on_bytes: Callable[[int], None]) -> None:
        """See Uploader.put_file."""
        uri = self.destination.uri_of(file.name)
        with self._typed_errors(uri):
            self._open()[1].upload(
                str(file.path),
                self.destination.bucket,
                self._key(file),
                extra_args={
                    "Metadata": {CHECKSUM_KEY: sums.sha256},
                    # Of the whole object: else S3 keeps one of the parts' checksums, which proves nothing later.
                    **({"ChecksumCRC32": CRC32.encode(sums.crc)} if sums.crc is not None else {}),
                },
                subscribers=[_ByteCounter(on_bytes)],
            ).result()
            head = self._client.head_object(Bucket=self.destination.bucket, Key=self._key(file))
        if head["ContentLength"] != file.size_bytes:
            raise Truncated(
                uri,
                f"{file.size_bytes:,} bytes were uploaded, but the store holds {head['ContentLength']:,}.",
                remedy="Push again.",
            )

    def _key(self, file: LocalFile) -> str:
        return object_key(self.destination, file.name)

    def abort(self) -> None:
        """See Uploader.abort: s3transfer aborts the multipart uploads."""
        if self._made is not None:
            # As its context manager does; its shutdown(cancel=True) passes its own arguments on in the wrong places.
            self._made[1].__exit__(CancelledError, CancelledError("ended"), None)

    def close(self) -> None:
        """See Uploader.close."""
        if self._made is not None:
            client, manager = self._made
            manager.shutdown()
            client.close()

    @contextmanager
    def _typed_errors(self, uri: str) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise store_error(error, uri, self._settings, self.destination.bucket) from None
        except CancelledError:
            raise StoreError(uri, "The upload was ended.") from None


class _ByteCounter(BaseSubscriber):  # type: ignore[misc]
    """s3transfer's way of telling how many bytes have gone."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        self._on_bytes = on_bytes

    def on_progress(self, bytes_transferred: int, **_: object) -> None:
        self._on_bytes(bytes_transferred)
