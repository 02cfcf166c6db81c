"""Uploading a folder to a store: what is there already stays, what is sent is proved.

Each object carries the SHA-256 of its file in its metadata, so that a second push sends only what changed. Where the
store is told checksums, it is told one of the whole object, which it keeps and a load can be verified with.
"""

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.source.files import MANIFEST_NAME
from headrace.source.uri import ModelSource
from headrace.store.errors import NotFound, StoreError, Unsupported
from headrace.store.upload.digest import WholeCrc, sha256_of
from headrace.store.upload.file import reading
from headrace.store.upload.manifest import ManifestMaker, needs_manifest
from headrace.store.upload.plan import LocalFile, upload_stages
from headrace.store.upload.uploader import FileSums, Uploader, open_uploader

if TYPE_CHECKING:
    from headrace.store.s3.settings import S3Settings

_FILES_AT_ONCE = 8


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
    settings: "S3Settings | None" = None,
    *,
    create_bucket: bool = False,
    manifest: bool = False,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> UploadResult:
    """Make the prefix hold these files.

    Args:
        settings: S3's, where they are not those of this process's environment.
        create_bucket: make the bucket if it does not exist.
        manifest: make a manifest of the weights and put it beside them. Where the prefix or the folder has one, a
            new one is made in every case: the old one may be stale.
        on_bytes: told of bytes that are in the store (sent or found), from several threads; negative when a
            part is sent again.

    Raises:
        StoreError: as the taxonomy says; nothing half-uploaded stays behind.
        FileChanged: a file changed under the upload.
        CannotReadFile: one cannot be read, or is gone.
    """
    uploader = open_uploader(destination, settings)
    try:
        created = create_bucket and uploader.make_bucket()
        present = _list_sizes(uploader)
        skipped: list[LocalFile] = []
        maker = ManifestMaker() if needs_manifest(files, present, wanted=manifest) else None
        if maker is not None:  # it takes the place of one in the folder
            files = [file for file in files if file.name != MANIFEST_NAME]
        for stage in upload_stages(files):
            skipped += _upload_stage(uploader, stage, present, on_bytes, maker)
            if maker is not None:  # after the weights, which are the first stage
                made, was_there = _upload_manifest(uploader, maker, present)
                files, skipped, maker = [*files, *made], [*skipped, *was_there], None
        if "//" in destination.prefix:
            _check_slashes(files, destination, uploader.sizes())
    finally:
        uploader.close()
    files = sorted(files, key=lambda file: file.name)
    there = {file.name for file in skipped}
    uploaded = [file for file in files if file.name not in there]
    skipped = [file for file in files if file.name in there]
    return UploadResult(
        uploaded=tuple(file.name for file in uploaded),
        skipped=tuple(file.name for file in skipped),
        bytes_uploaded=sum(file.size_bytes for file in uploaded),
        bytes_skipped=sum(file.size_bytes for file in skipped),
        only_in_store=tuple(sorted(present.keys() - {file.name for file in files})),
        bucket_created=created,
    )


def _upload_stage(
    uploader: Uploader,
    stage: Sequence[LocalFile],
    present: dict[str, int],
    on_bytes: Callable[[int], None],
    maker: ManifestMaker | None = None,
) -> list[LocalFile]:
    """Upload what is missing and wait for it; the files that were there already."""
    skipped: list[LocalFile] = []
    running: list[Future[None]] = []
    pool = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="upload")
    try:
        for file in stage:
            with reading(file):
                facts = file.path.stat()
                # Hashed here while other threads send the files before it.
                sums = _sums_of(file, uploader, maker)
            if present.get(file.name) == file.size_bytes and uploader.holds(file, sums):
                skipped.append(file)
                on_bytes(file.size_bytes)
                continue
            # What has failed by now is told before another large file is hashed for nothing.
            for transfer in running:
                if transfer.done():
                    transfer.result()
            running.append(pool.submit(_put, uploader, file, facts, sums, on_bytes))
        for transfer in running:
            transfer.result()
    except BaseException:  # an error or Ctrl-C: what is under way ends with it
        pool.shutdown(wait=False, cancel_futures=True)
        uploader.abort()
        raise
    finally:
        pool.shutdown()
    return skipped


def _sums_of(file: LocalFile, uploader: Uploader, maker: ManifestMaker | None) -> FileSums:
    whole = WholeCrc(uploader.crc) if uploader.crc is not None else None
    summer = maker.summer(file) if maker is not None else None
    sha256 = sha256_of(file, *(one.update for one in (whole, summer) if one is not None))
    return FileSums(sha256, whole.value if whole is not None else None)


def _put(
    uploader: Uploader,
    file: LocalFile,
    facts: os.stat_result,
    sums: FileSums,
    on_bytes: Callable[[int], None],
) -> None:
    """Send one file and check that it is still the one that was hashed."""
    uri = uploader.destination.uri_of(file.name)
    try:
        with reading(file):
            uploader.put_file(file, sums, on_bytes)
    except StoreError:  # the store may have found that the bytes are not those that were hashed
        _check_unchanged(file, facts, uri)
        raise
    _check_unchanged(file, facts, uri)


def _check_unchanged(file: LocalFile, facts: os.stat_result, uri: str) -> None:
    with reading(file):
        now = file.path.stat()
    if (now.st_size, now.st_mtime_ns) != (facts.st_size, facts.st_mtime_ns):
        raise FileChanged(
            f"{file.path} was changed while it was uploaded to {uri}.",
            remedy="Push again once nothing writes to the folder.",
        )


def _upload_manifest(
    uploader: Uploader, maker: ManifestMaker, present: dict[str, int]
) -> tuple[list[LocalFile], list[LocalFile]]:
    """Make the manifest and upload it, unless it is there: it, and it again if it was there."""
    with tempfile.TemporaryDirectory(prefix="headrace-push-") as folder:
        file = maker.write(Path(folder))
        if file is None:
            return [], []
        return [file], _upload_stage(uploader, [file], present, lambda _count: None)


def _list_sizes(uploader: Uploader) -> dict[str, int]:
    try:
        return uploader.sizes()
    except NotFound as error:
        error.remedy = f"{error.remedy} `headrace push --create-bucket` makes it.".lstrip()
        raise


def _check_slashes(files: Sequence[LocalFile], destination: ModelSource, present: dict[str, int]) -> None:
    """Some stores answer for a//b and list it as a/b, so that it is never found. Raises Unsupported."""
    if files and not any(file.name in present for file in files):
        single = re.sub("/+", "/", destination.prefix)
        raise Unsupported(
            destination.uri,
            "The store does not list what was uploaded there: it takes // for /.",
            remedy=f"Serve or push {destination.scheme}://{destination.bucket}/{single}.",
        )
