"""Writing to Google Cloud Storage: resumable uploads, proved by the size and the CRC-32C that the store answers with."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from headrace.source.uri import ModelSource
from headrace.store.crc import CRC32C, Crc
from headrace.store.errors import Corrupt, NotFound, StoreError, TransientError, Truncated
from headrace.store.gcs.connection import GcsConnection, object_target, objects_target
from headrace.store.gcs.session import Session, StoredObject, parse_object, upload_session
from headrace.store.gcs.settings import GcsSettings, project_of
from headrace.store.gcs.store import GcsStore
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S
from headrace.store.upload.connections import UploadConnections
from headrace.store.upload.file import opened_file
from headrace.store.upload.plan import LocalFile
from headrace.store.upload.uploader import CHECKSUM_KEY, FileSums, object_key

_FIRST_WAIT_S = 0.5


class GcsUploader:
    """See Uploader."""

    def __init__(
        self, destination: ModelSource, settings: GcsSettings, *, first_wait_s: float = _FIRST_WAIT_S
    ) -> None:
        """Args: first_wait_s: before the second try of what failed; doubled each time.

        Raises NoCredentials.
        """
        settings.principal.token()
        self.destination, self._settings = destination, settings
        self._connections = UploadConnections(self._connect, destination.uri, first_wait_s=first_wait_s)

    @property
    def crc(self) -> Crc | None:
        """The one that Cloud Storage keeps of every object."""
        return CRC32C

    def make_bucket(self) -> bool:
        """See Uploader.make_bucket. It is made in the project that the environment names, at the usual place."""
        bucket = self.destination.bucket
        with self._connections.taken() as connection:
            try:
                # By what a listing answers: looking at a bucket itself takes another permission.
                connection.ask("GET", objects_target(bucket, {"maxResults": "1", "fields": "kind"}))
                return False
            except NotFound as error:
                project = project_of(os.environ) or ("test" if self._settings.is_emulator else "")
                if not project:
                    error.remedy = (
                        f"Make it with `gcloud storage buckets create gs://{bucket} --location=PLACE`, or name the "
                        "project to make it in, in GOOGLE_CLOUD_PROJECT."
                    )
                    raise
            body = json.dumps({"name": bucket}).encode()
            target = f"/storage/v1/b?{urlencode({'project': project})}"
            connection.ask("POST", target, {"Content-Type": "application/json"}, body)
        return True

    def sizes(self) -> dict[str, int]:
        """See Uploader.sizes."""
        return {
            item.name: item.size_bytes for item in GcsStore(self.destination, self._settings).list_below()
        }

    def holds(self, file: LocalFile, sums: FileSums) -> bool:
        """See Uploader.holds."""
        target = object_target(
            self.destination.bucket,
            object_key(self.destination, file.name),
            {"fields": "size,crc32c,metadata"},
        )
        with self._connections.taken() as connection:
            try:
                stored = parse_object(connection.ask("GET", target), self.destination.uri_of(file.name))
            except NotFound:  # it was there when it was listed
                return False
        return stored.size == str(file.size_bytes) and stored.metadata.get(CHECKSUM_KEY) == sums.sha256

    def put_file(self, file: LocalFile, sums: FileSums, on_bytes: Callable[[int], None]) -> None:
        """See Uploader.put_file."""
        uri = self.destination.uri_of(file.name)
        resource: dict[str, object] = {
            "name": object_key(self.destination, file.name),
            "contentType": "application/octet-stream",
            "metadata": {CHECKSUM_KEY: sums.sha256},
        }
        if sums.crc is not None:  # the store refuses what does not match it
            resource["crc32c"] = CRC32C.encode(sums.crc)
        with self._connections.taken() as connection, opened_file(file, uri) as descriptor:
            stored = self._send(connection, resource, file.size_bytes, descriptor, uri, on_bytes)
        if stored.size != str(file.size_bytes):
            raise Truncated(
                uri,
                f"{file.size_bytes:,} bytes were uploaded, but the store holds {stored.size}.",
                remedy="Push again.",
            )
        held = CRC32C.decode(stored.crc32c)
        if sums.crc is not None and held is not None and held != sums.crc:
            raise Corrupt(
                uri, "What the store holds has another CRC-32C than the file.", remedy="Push again."
            )

    def _send(
        self,
        connection: GcsConnection,
        resource: Mapping[str, object],
        size_bytes: int,
        descriptor: int,
        uri: str,
        on_bytes: Callable[[int], None],
    ) -> StoredObject:
        sessions: list[Session] = []
        failures = 0

        def retry(error: TransientError, moved: bool) -> None:
            nonlocal failures
            failures = 1 if moved else failures + 1
            if not self._connections.may_retry(error, failures):
                raise error

        try:
            return upload_session(
                lambda: Session(connection, self.destination.bucket, resource, size_bytes, uri),
                descriptor,
                size_bytes,
                on_bytes=on_bytes,
                retry=retry,
                began=sessions.append,
            )
        except BaseException:
            for session in sessions[-1:]:
                self._cancel(session)
            self._connections.refuse_ended()
            raise

    def _cancel(self, session: Session) -> None:
        """What the store has of an unfinished upload is no object, and would be dropped in a week all the same."""
        connection = self._connect()
        try:
            with contextlib.suppress(StoreError):
                session.cancel(connection)
        finally:
            connection.http.close()

    def _connect(self) -> GcsConnection:
        return GcsConnection(
            self._settings, uri=self.destination.uri, stall_timeout_s=6 * FIRST_STALL_TIMEOUT_S
        )

    def abort(self) -> None:
        """See Uploader.abort."""
        self._connections.abort()

    def close(self) -> None:
        """See Uploader.close."""
        self._connections.close()
