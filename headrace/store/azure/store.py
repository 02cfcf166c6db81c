"""Azure Blob Storage: listing and ranged reads, each pinned to the ETag that was listed."""

import logging
from collections.abc import Iterator
from dataclasses import replace

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.azure.connection import AzureConnection
from headrace.store.azure.described import describe_azure
from headrace.store.azure.listing import BlobPage, NotABlobListing, parse_blob_page
from headrace.store.azure.settings import AzureSettings
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.crc import CRC64NVME
from headrace.store.described import Setting
from headrace.store.errors import BadEndpoint, StoreError
from headrace.store.http.answer import check_answer, removed_error, replaced_error
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S, STALL_TIMEOUT_S, Head
from headrace.store.http.receive import receive_found, receive_into
from headrace.store.http.spares import Spares
from headrace.store.paging import list_below, list_folder
from headrace.store.principal import tell_if_not_asked_for
from headrace.store.stored_checksum import StoredChecksum
from headrace.store.versions import is_weak, warn_of_weak_versions

# Names of metadata are identifiers: no dashes.
SHA256_HEADER = "x-ms-meta-headrace_sha256"
CRC_HEADER = "x-ms-meta-headrace_crc64nvme"
_MAX_LIST_BYTES = 64 << 20  # names take up to 4 KiB each
_PAGE_OBJECTS = 5_000  # the most that the service gives
_logger = logging.getLogger(__name__)


class AzureStore:
    """One container and prefix, seen through resolved settings."""

    def __init__(
        self,
        source: ModelSource,
        settings: AzureSettings,
        *,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        page_objects: int = _PAGE_OBJECTS,
    ) -> None:
        """Args: page_objects: names in one page of a listing."""
        self.source = source
        self.settings = settings
        self._page_objects = page_objects
        self.stall_timeout_s = stall_timeout_s
        self._spares: Spares[AzureReader] = Spares()

    @property
    def identity(self) -> str:
        """Endpoint, container and prefix."""
        endpoint = self.settings.endpoint
        return f"{endpoint.url}{endpoint.path}/{self.source.bucket}/{self.source.prefix}"

    def describe(self) -> tuple[Setting, ...]:
        """See Described.describe."""
        return describe_azure(self.settings)

    def list(self) -> Listing:
        """What lies directly under the prefix.

        Raises:
            NotFound: the container does not exist, or nothing lies under the prefix.
            StoreError: as the taxonomy says.
        """
        connection = self._connect()
        try:
            listing = list_folder(self.source, lambda prefix: self._pages(connection, prefix))
        finally:
            connection.http.close()
        warn_of_weak_versions(self.source.uri, listing)
        tell_if_not_asked_for(self.settings.principal, self.source.uri, _logger)
        return listing

    def list_below(self, folder: str = "") -> Iterator[ObjectInfo]:
        """See ListsBelow.list_below."""
        connection = self._connect()
        try:
            yield from list_below(
                self.source, folder, lambda prefix: self._pages(connection, prefix, deep=True)
            )
        finally:
            connection.http.close()

    def _connect(self) -> AzureConnection:
        stall_timeout_s = min(self.stall_timeout_s, FIRST_STALL_TIMEOUT_S)
        return AzureConnection(
            self.settings, self.source.bucket, uri=self.source.uri, stall_timeout_s=stall_timeout_s
        )

    def _pages(self, connection: AzureConnection, prefix: str, *, deep: bool = False) -> Iterator[BlobPage]:
        query = {"restype": "container", "comp": "list", "prefix": prefix}
        query |= {"include": "metadata", "maxresults": str(self._page_objects)}
        if not deep:
            query["delimiter"] = "/"

        def fetch() -> bytes:
            head = connection.send("GET", "", query, {})
            body = connection.http.read_body(_MAX_LIST_BYTES)
            if head.status != 200:
                raise connection.error(self.source.uri, head, body)
            return body

        while True:
            try:
                page = parse_blob_page(connection.with_renewal(fetch), prefix, deep=deep)
            except NotABlobListing as error:
                raise BadEndpoint(
                    self.settings.endpoint.url,
                    f"The endpoint does not answer a listing as Azure's blob service does: {error}.",
                    remedy=f"Check {self.settings.endpoint.named_by}.",
                ) from None
            yield page
            if not page.next_token:
                return
            query["marker"] = page.next_token

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        with self._spares.lent(self.open_reader()) as reader:
            return reader.look_up(name, first_bytes)

    def open_reader(self) -> "AzureReader":
        """A connection of its own for one thread; one that a look-up has left open, if there is one."""
        return self._spares.take() or AzureReader(self.source, self.settings, self.stall_timeout_s)


class AzureReader:
    """Ranged reads of listed objects, each pinned to the listed version."""

    def __init__(self, source: ModelSource, settings: AzureSettings, stall_timeout_s: float) -> None:
        self._source, self._stall_timeout_s = source, stall_timeout_s
        self._container = replace(source, prefix="")
        self._connection = AzureConnection(
            settings, source.bucket, uri=source.uri, stall_timeout_s=stall_timeout_s
        )

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        self._connection.with_renewal(lambda: self._request(item, first, last))
        receive_into(self._connection.http, target, self._uri(item.key))

    def _request(self, item: ObjectInfo, first: int, last: int) -> None:
        headers = {"x-ms-range": f"bytes={first}-{last}"}
        if item.version and not is_weak(item.version):
            headers["If-Match"] = f'"{item.version}"'
        head = self._connection.send("GET", item.key, {}, headers)
        uri = self._uri(item.key)
        if head.status in (200, 206):
            check_answer(head, item, first, last, uri)
            return
        error = self._connection.error(uri, head, self._connection.http.read_body())
        if head.status == 412:
            raise replaced_error(error, item, self._look(item))
        raise removed_error(error, item)

    def _look(self, item: ObjectInfo) -> Head | None:
        """The head of what is now under the key; None where it does not come: it is only asked for a message."""
        try:
            return self._connection.send("HEAD", item.key, {}, {})
        except StoreError:
            return None

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        key = f"{self._source.prefix}/{name}" if self._source.prefix else name
        uri, http = self._uri(key), self._connection.http
        http.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            head = self._connection.with_renewal(lambda: self._ask(key, first_bytes, uri))
            return receive_found(http, head, key, name, first_bytes, uri)
        finally:
            http.be_patient(self._stall_timeout_s)

    def _ask(self, key: str, first_bytes: int, uri: str) -> Head:
        http = self._connection.http
        head = self._connection.send("GET", key, {}, {"x-ms-range": f"bytes=0-{first_bytes - 1}"})
        # An empty object has no first byte; Azurite sends none of it as a range without bounds.
        if head.status == 416 or (head.status == 206 and head.headers.get("content-length") == "0"):
            http.read_body()
            head = self._connection.send("GET", key, {}, {})
        if head.status not in (200, 206):
            raise self._connection.error(uri, head, http.read_body())
        return head

    def stored_checksum(self, item: ObjectInfo) -> StoredChecksum | str:
        """See KeepsChecksums: the service keeps none that parts combine to; a push writes one beside the object."""
        uri = self._uri(item.key)

        def ask() -> Head:
            head = self._connection.send("HEAD", item.key, {}, {})
            if head.status != 200:
                raise removed_error(self._connection.error(uri, head, b""), item)
            return head

        head = self._connection.with_renewal(ask)
        check_answer(head, item, 0, item.size_bytes - 1, uri)
        text = head.headers.get(CRC_HEADER, "")
        value = CRC64NVME.decode(text)
        return (
            "no checksum was written when it was pushed"
            if value is None
            else StoredChecksum(CRC64NVME, value)
        )

    def _uri(self, key: str) -> str:
        return self._container.uri_of(key)

    def abort(self) -> None:
        """See Reader.abort."""
        self._connection.http.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.http.close()
