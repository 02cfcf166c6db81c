"""Writing to Azure Blob Storage: small files in one request, large ones in blocks, each proved by its MD5.

https://learn.microsoft.com/rest/api/storageservices/understanding-block-blobs--append-blobs--and-page-blobs
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from headrace.source.uri import ModelSource
from headrace.store.azure.connection import AzureConnection
from headrace.store.azure.settings import AzureSettings
from headrace.store.azure.store import CRC_HEADER, SHA256_HEADER, AzureStore
from headrace.store.crc import CRC64NVME, Crc
from headrace.store.errors import NoCredentials, NotFound, Truncated, Unsupported
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S, Head
from headrace.store.upload.connections import UploadConnections
from headrace.store.upload.file import opened_file
from headrace.store.upload.plan import LocalFile
from headrace.store.upload.uploader import FileSums, object_key

BLOCK_BYTES = 16 << 20
_MOST_BLOCKS = 50_000
_BLOCKS_AT_ONCE = 8
_TYPE = "application/octet-stream"


class AzureUploader:
    """See Uploader. Of what is not complete the service keeps blocks that are no object, and drops them in a week."""

    def __init__(
        self,
        destination: ModelSource,
        settings: AzureSettings,
        *,
        block_bytes: int = BLOCK_BYTES,
        first_wait_s: float = 0.5,
    ) -> None:
        """Args: first_wait_s: before the second try of what failed; doubled each time.

        Raises NoCredentials.
        """
        if settings.principal.is_anonymous:
            raise NoCredentials(
                destination.uri,
                f"Who writes must say who it is ({settings.principal.origin}).",
                remedy=settings.principal.remedy,
            )
        self.destination, self._settings, self._block_bytes = destination, settings, block_bytes
        self._connections = UploadConnections(self._connect, destination.uri, first_wait_s=first_wait_s)
        self._pool = ThreadPoolExecutor(_BLOCKS_AT_ONCE, thread_name_prefix="upload-block")

    def _connect(self) -> AzureConnection:
        return AzureConnection(
            self._settings,
            self.destination.bucket,
            uri=self.destination.uri,
            stall_timeout_s=6 * FIRST_STALL_TIMEOUT_S,
        )

    @property
    def crc(self) -> Crc | None:
        """The one that loads are verified with; it is kept in the object's metadata."""
        return CRC64NVME

    def make_bucket(self) -> bool:
        """See Uploader.make_bucket."""
        try:
            # By what a listing answers: a signature for a container may not look at the container itself.
            self._ask("GET", "", {"restype": "container", "comp": "list", "maxresults": "1"}, {}, 200)
            return False
        except NotFound:
            self._ask("PUT", "", {"restype": "container"}, {}, 201, b"")
        return True

    def sizes(self) -> dict[str, int]:
        """See Uploader.sizes."""
        return {
            item.name: item.size_bytes for item in AzureStore(self.destination, self._settings).list_below()
        }

    def holds(self, file: LocalFile, sums: FileSums) -> bool:
        """See Uploader.holds."""
        try:
            head = self._ask("HEAD", self._key(file), {}, {}, 200)
        except NotFound:  # it was there when it was listed
            return False
        return _size_in(head) == file.size_bytes and head.headers.get(SHA256_HEADER) == sums.sha256

    def put_file(self, file: LocalFile, sums: FileSums, on_bytes: Callable[[int], None]) -> None:
        """See Uploader.put_file. `on_bytes` is told when a block has arrived."""
        uri = self.destination.uri_of(file.name)
        if "\\" in file.name:
            raise Unsupported(
                uri, "The store takes a backslash in a name for a slash.", remedy="Rename the file."
            )
        headers = {SHA256_HEADER: sums.sha256}
        if sums.crc is not None:
            headers[CRC_HEADER] = CRC64NVME.encode(sums.crc)
        with opened_file(file, uri) as descriptor:
            if file.size_bytes <= self._block_bytes:
                data = os.pread(descriptor, file.size_bytes, 0)
                headers |= {"x-ms-blob-type": "BlockBlob", "Content-Type": _TYPE, "Content-MD5": _md5(data)}
                self._ask("PUT", self._key(file), {}, headers, 201, data)
                on_bytes(len(data))
            else:
                names = self._put_blocks(file, descriptor, on_bytes)
                blocks = "".join(f"<Latest>{name}</Latest>" for name in names)
                body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
                headers |= {"x-ms-blob-content-type": _TYPE, "Content-MD5": _md5(body)}
                self._ask("PUT", self._key(file), {"comp": "blocklist"}, headers, 201, body)
        size = _size_in(self._ask("HEAD", self._key(file), {}, {}, 200))
        if size != file.size_bytes:
            raise Truncated(
                uri,
                f"{file.size_bytes:,} bytes were uploaded, but the store holds {size:,}.",
                remedy="Push again.",
            )

    def _put_blocks(self, file: LocalFile, descriptor: int, on_bytes: Callable[[int], None]) -> list[str]:
        """Send a file in blocks, some at once; their names in order."""
        length = max(self._block_bytes, -(-file.size_bytes // _MOST_BLOCKS))
        starts = range(0, file.size_bytes, length)
        # Of this upload alone, so that blocks of another one that is under way are not mixed in; all of one length.
        ours = secrets.token_hex(8)
        names = [base64.b64encode(f"{ours}{number:08}".encode()).decode() for number in range(len(starts))]

        def put(name: str, start: int) -> None:
            data = os.pread(descriptor, min(length, file.size_bytes - start), start)
            query = {"comp": "block", "blockid": name}
            self._ask("PUT", self._key(file), query, {"Content-MD5": _md5(data)}, 201, data)
            on_bytes(len(data))

        running = [self._pool.submit(put, name, start) for name, start in zip(names, starts, strict=True)]
        try:
            for future in running:
                future.result()
        finally:
            for future in running:
                future.cancel()
            for future in running:  # the descriptor is closed after this
                if not future.cancelled():
                    future.exception()
        return names

    def _ask(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        success: int,
        body: bytes | None = None,
    ) -> Head:
        uri = replace(self.destination, prefix="").uri_of(key) if key else self.destination.uri

        def request(connection: AzureConnection) -> Head:
            def once() -> Head:
                head = connection.send(method, key, query, headers, body)
                answer = connection.http.read_body()
                if head.status != success:
                    raise connection.error(uri, head, answer)
                return head

            return connection.with_renewal(once)

        return self._connections.retried(request)

    def _key(self, file: LocalFile) -> str:
        return object_key(self.destination, file.name)

    def abort(self) -> None:
        """See Uploader.abort."""
        self._connections.abort()  # what still waits for a thread fails at once

    def close(self) -> None:
        """See Uploader.close."""
        self._pool.shutdown()
        self._connections.close()


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _size_in(head: Head) -> int:
    text = head.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else -1
