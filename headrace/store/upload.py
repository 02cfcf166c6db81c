"""Uploading a folder to an S3 prefix: what is there already stays, what is sent is proved.

Each object carries the SHA-256 of its file in its metadata, so that a second push sends only what changed. Where the
store is sent checksums anyway, it is sent one of the whole object, which it keeps and a load can be verified with.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from botocore.client import BaseClient
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.futures import TransferFuture
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber

from headrace.errors import HeadraceError
from headrace.source.files import MANIFEST_NAME
from headrace.source.uri import ModelSource
from headrace.store.errors import NotFound, Truncated, Unsupported
from headrace.store.s3_client import make_s3_client, store_error
from headrace.store.s3_errors import BUCKET_NAME_REMEDY
from headrace.store.s3_settings import S3Settings
from headrace.store.upload_digest import WholeCrc, sha256_of
from headrace.store.upload_manifest import ManifestMaker, needs_manifest
from headrace.store.upload_plan import LocalFile, upload_stages

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
_BUCKET_NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
CHECKSUM_KEY = "headrace-sha256"
PART_BYTES = 16 << 20
_CONNECTIONS = 8
_ATTEMPTS = 6


class FileChanged(HeadraceError):
    """A file was written to while it was uploaded."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What an upload did. Names are relative to the prefix.

    Attributes:
        uploaded, skipped: names of files that were sent, and that were there already.
        bytes_uploaded, bytes_skipped: their sizes.
        only_in_store: names of objects under the prefix that the folder does not have; they are left alone.
        bucket_created: whether the bucket was made.
    """

    uploaded: tuple[str, ...]
    skipped: tuple[str, ...]
    bytes_uploaded: int
    bytes_skipped: int
    only_in_store: tuple[str, ...]
    bucket_created: bool


def upload_files(
    files: Sequence[LocalFile],
    destination: ModelSource,
    settings: S3Settings,
    *,
    create_bucket: bool = False,
    manifest: bool = False,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> UploadResult:
    """Make the prefix hold these files.

    Args:
        create_bucket: make the bucket if it does not exist.
        manifest: make a manifest of the weights and put it beside them. Where the prefix or the folder has one, a
            new one is made in every case: the old one may be stale.
        on_bytes: told of bytes that are in the store (sent or found), from several threads; negative when a
            part is sent again.

    Raises:
        StoreError: as the taxonomy says; nothing half-uploaded stays behind.
        FileChanged: a file changed under the upload.
    """
    with _typed_errors(destination.uri, settings, destination.bucket):
        # One attempt: a wrong endpoint is told at once, not after the retries that an upload deserves.
        probe = make_s3_client(settings, attempts=1)
        created = create_bucket and _create_missing_bucket(probe, destination.bucket, settings)
        present = _list_sizes(probe, destination, settings)
        client = make_s3_client(settings, attempts=_ATTEMPTS, connections=_CONNECTIONS)
        skipped: list[LocalFile] = []
        maker = ManifestMaker() if needs_manifest(files, present, wanted=manifest) else None
        if maker is not None:  # it takes the place of one in the folder
            files = [file for file in files if file.name != MANIFEST_NAME]
        for stage in upload_stages(files):
            skipped += _upload_stage(client, stage, destination, settings, present, on_bytes, maker)
            if maker is not None:  # after the weights, which are the first stage
                made, was_there = _upload_manifest(client, maker, destination, settings, present)
                files, skipped, maker = [*files, *made], [*skipped, *was_there], None
        if "//" in destination.prefix:
            _check_slashes(files, destination, _list_sizes(probe, destination, settings))
    files = sorted(files, key=lambda file: file.name)
    uploaded = [file for file in files if file not in skipped]
    skipped = [file for file in files if file in skipped]
    return UploadResult(
        uploaded=tuple(file.name for file in uploaded),
        skipped=tuple(file.name for file in skipped),
        bytes_uploaded=sum(file.size_bytes for file in uploaded),
        bytes_skipped=sum(file.size_bytes for file in skipped),
        only_in_store=tuple(sorted(present.keys() - {file.name for file in files})),
        bucket_created=created,
    )


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A file on its way, and what it looked like when it was hashed."""

    file: LocalFile
    facts: os.stat_result
    future: TransferFuture


def _upload_stage(
    client: BaseClient,
    stage: Sequence[LocalFile],
    destination: ModelSource,
    settings: S3Settings,
    present: dict[str, int],
    on_bytes: Callable[[int], None],
    maker: ManifestMaker | None = None,
) -> list[LocalFile]:
    """Upload what is missing and wait for it; the files that were there already."""
    config = TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_request_concurrency=_CONNECTIONS
    )
    skipped: list[LocalFile] = []
    # Leaving it by an error or Ctrl-C cancels what is under way and aborts the multipart uploads.
    with TransferManager(client, config) as manager:
        running: list[_Transfer] = []
        for file in stage:
            facts = file.path.stat()
            whole = WholeCrc() if _sends_checksums(client) else None
            summer = maker.summer(file) if maker is not None else None
            # Hashed here while the transfer threads send the files before it.
            checksum = sha256_of(file, *(one.update for one in (whole, summer) if one is not None))
            if present.get(file.name) == file.size_bytes and _holds(client, file, destination, checksum):
                skipped.append(file)
                on_bytes(file.size_bytes)
                continue
            # What has failed by now is told before another large file is hashed for nothing.
            for transfer in running:
                if transfer.future.done():
                    _finish(client, transfer, destination, settings)
            future = manager.upload(
                str(file.path),
                destination.bucket,
                object_key(destination, file.name),
                extra_args={
                    "Metadata": {CHECKSUM_KEY: checksum},
                    # Of the whole object: else S3 keeps one of the parts' checksums, which proves nothing later.
                    **({"ChecksumCRC32": whole.text} if whole is not None else {}),
                },
                subscribers=[_ByteCounter(on_bytes)],
            )
            running.append(_Transfer(file, facts, future))
        for transfer in running:
            _finish(client, transfer, destination, settings)
    return skipped


def _upload_manifest(
    client: BaseClient,
    maker: ManifestMaker,
    destination: ModelSource,
    settings: S3Settings,
    present: dict[str, int],
) -> tuple[list[LocalFile], list[LocalFile]]:
    """Make the manifest and upload it, unless it is there: it, and it again if it was there."""
    with tempfile.TemporaryDirectory(prefix="headrace-push-") as folder:
        file = maker.write(Path(folder))
        if file is None:
            return [], []
        return [file], _upload_stage(client, [file], destination, settings, present, lambda _count: None)


def _sends_checksums(client: BaseClient) -> bool:
    """Whether checksums go with what is uploaded: not to stores that may not know them."""
    return bool(client.meta.config.request_checksum_calculation == "when_supported")


def object_key(destination: ModelSource, name: str) -> str:
    """The key of a file under the prefix."""
    return f"{destination.prefix}/{name}" if destination.prefix else name


def _holds(client: BaseClient, file: LocalFile, destination: ModelSource, checksum: str) -> bool:
    """Whether the store has this very file."""
    head = client.head_object(Bucket=destination.bucket, Key=object_key(destination, file.name))
    size: int = head["ContentLength"]
    stored: str | None = head["Metadata"].get(CHECKSUM_KEY)
    return size == file.size_bytes and stored == checksum


def _finish(client: BaseClient, transfer: _Transfer, destination: ModelSource, settings: S3Settings) -> None:
    """Wait for a transfer and check that the store holds all of the file that was hashed."""
    file, uri = transfer.file, destination.uri_of(transfer.file.name)
    with _typed_errors(uri, settings, destination.bucket):
        try:
            transfer.future.result()
        except ClientError:  # the store may have found that the bytes are not those that were hashed
            _check_unchanged(transfer, uri)
            raise
        head = client.head_object(Bucket=destination.bucket, Key=object_key(destination, file.name))
    _check_unchanged(transfer, uri)
    if head["ContentLength"] != file.size_bytes:
        raise Truncated(
            uri,
            f"{file.size_bytes:,} bytes were uploaded, but the store holds {head['ContentLength']:,}.",
            remedy="Push again.",
        )


def _check_unchanged(transfer: _Transfer, uri: str) -> None:
    facts = transfer.file.path.stat()
    if (facts.st_size, facts.st_mtime_ns) != (transfer.facts.st_size, transfer.facts.st_mtime_ns):
        raise FileChanged(
            f"{transfer.file.path} was changed while it was uploaded to {uri}.",
            remedy="Push again once nothing writes to the folder.",
        )


def _list_sizes(client: BaseClient, destination: ModelSource, settings: S3Settings) -> dict[str, int]:
    """Name below the prefix → size, for all objects there."""
    prefix = object_key(destination, "")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=destination.bucket, Prefix=prefix)
    try:
        return {
            item["Key"][len(prefix) :]: item["Size"] for page in pages for item in page.get("Contents", ())
        }
    except ClientError as error:
        typed = store_error(error, destination.uri, settings, destination.bucket)
        if isinstance(typed, NotFound):
            typed.remedy = (
                "Check its name and AWS_ENDPOINT_URL, or let `headrace push --create-bucket` make it."
            )
        raise typed from None


def _check_slashes(files: Sequence[LocalFile], destination: ModelSource, present: dict[str, int]) -> None:
    """Some stores answer for a//b and list it as a/b, so that it is never found. Raises Unsupported."""
    if files and not any(file.name in present for file in files):
        single = re.sub("/+", "/", destination.prefix)
        raise Unsupported(
            destination.uri,
            "The store does not list what was uploaded there: it takes // for /.",
            remedy=f"Serve or push s3://{destination.bucket}/{single}.",
        )


def _create_missing_bucket(client: BaseClient, bucket: str, settings: S3Settings) -> bool:
    """Make the bucket unless it is there. Whether it was made."""
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status == 400 and not _BUCKET_NAME.fullmatch(
            bucket
        ):  # the answer to a HEAD has no body that says why
            raise NotFound(
                f"s3://{bucket}", "No bucket can have this name.", remedy=BUCKET_NAME_REMEDY, status=status
            ) from None
        if status != 404:
            raise
    else:
        return False
    # AWS: us-east-1 is named by naming none.
    place = {} if settings.region == "us-east-1" else {"LocationConstraint": settings.region}
    client.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": place} if place else {}))
    return True


@contextmanager
def _typed_errors(uri: str, settings: S3Settings, bucket: str) -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise store_error(error, uri, settings, bucket) from None


class _ByteCounter(BaseSubscriber):  # type: ignore[misc]
    """s3transfer's way of telling how many bytes have gone."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        self._on_bytes = on_bytes

    def on_progress(self, bytes_transferred: int, **_: object) -> None:
        self._on_bytes(bytes_transferred)
