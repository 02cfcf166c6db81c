"""S3-compatible stores: signed listing and pinned, ranged reads over our own connections."""

import logging
from collections.abc import Iterator

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.described import Setting
from headrace.store.errors import BadEndpoint, NotFound, StoreError
from headrace.store.http.answer import check_answer, removed_error, replaced_error
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S, STALL_TIMEOUT_S, Head
from headrace.store.http.receive import receive_found, receive_into
from headrace.store.http.spares import Spares
from headrace.store.paging import list_below, list_folder
from headrace.store.s3.connection import S3Connection
from headrace.store.s3.errors import error_of_response
from headrace.store.s3.listing import ListPage, NotAListing, parse_page
from headrace.store.s3.settings import S3Settings
from headrace.store.stored_checksum import StoredChecksum, checksum_in
from headrace.store.stored_digest import CHECKSUM_KEY, StoredDigest, noted_digest
from headrace.store.versions import is_weak, warn_of_weak_versions

_logger = logging.getLogger(__name__)
_MAX_LIST_BYTES = 16 << 20


class S3Store:
    """One bucket and prefix, seen through resolved settings."""

    def __init__(
        self, source: ModelSource, settings: S3Settings, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        """Raises NoCredentials (for what is not whole or does not work) and Unsupported, before anything is sent."""
        settings.signer()
        settings.address_of(source.bucket)
        self.source = source
        self.settings = settings
        self.stall_timeout_s = stall_timeout_s
        self._spares: Spares[S3Reader] = Spares()

    @property
    def identity(self) -> str:
        """Endpoint, bucket and prefix."""
        return f"{self.settings.endpoint_url}/{self.source.bucket}/{self.source.prefix}"

    def describe(self) -> tuple[Setting, ...]:
        """See Described."""
        from headrace.store.s3.described import describe_s3

        return describe_s3(self.settings, self.source.bucket)

    def list(self) -> Listing:
        """What lies directly under the prefix.

        Raises:
            NotFound: the bucket does not exist, or nothing lies under the prefix.
            StoreError: as the taxonomy says.
        """
        connection = self._connect()
        try:
            listing = list_folder(self.source, lambda prefix: self._pages(connection, prefix))
        finally:
            connection.close()
        if self.settings.signer() is None and not self.settings.anonymous:
            _logger.info("%s is read without credentials: none were found.", self.source.uri)
        warn_of_weak_versions(self.source.uri, listing)
        return listing

    def list_below(self, folder: str = "") -> Iterator[ObjectInfo]:
        """See ListsBelow.list_below."""
        connection = self._connect()
        try:
            yield from list_below(
                self.source, folder, lambda prefix: self._pages(connection, prefix, deep=True)
            )
        finally:
            connection.close()

    def _connect(self) -> S3Connection:
        return S3Connection(
            self.settings, self.source.bucket, min(self.stall_timeout_s, FIRST_STALL_TIMEOUT_S)
        )

    def _pages(self, connection: S3Connection, prefix: str, *, deep: bool = False) -> Iterator[ListPage]:
        page = self._page(connection, prefix, "", deep=deep)
        yield page
        while page.next_token:
            page = self._page(connection, prefix, page.next_token, deep=deep)
            yield page

    def _page(self, connection: S3Connection, prefix: str, token: str, *, deep: bool = False) -> ListPage:
        query = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
        if not deep:
            query["delimiter"] = "/"
        if token:
            query["continuation-token"] = token

        def request() -> bytes:
            head, body = connection.fetch("", query, limit_bytes=_MAX_LIST_BYTES)
            if head.status != 200:
                raise error_of_response(self.source.uri, head, body, self.settings, self.source.bucket)
            return body

        body = connection.asked_again(request)
        try:
            return parse_page(body, prefix, deep=deep)
        except NotAListing as error:
            raise BadEndpoint(
                self.settings.endpoint_url,
                f"The endpoint does not answer a listing as an S3 store does: {error}.",
                remedy=f"Check that {self.settings.endpoint_name} is the store's S3 API (not its web console).",
            ) from None

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        with self._spares.lent(self.open_reader()) as reader:
            return reader.look_up(name, first_bytes)

    def open_reader(self) -> "S3Reader":
        """A connection of its own for one thread; one that a look-up has left open, if there is one."""
        return self._spares.take() or S3Reader(self.source, self.settings, self.stall_timeout_s)


class S3Reader:
    """Ranged reads of listed objects, each pinned to the listed version."""

    def __init__(self, source: ModelSource, settings: S3Settings, stall_timeout_s: float) -> None:
        self._source, self._settings, self._stall_timeout_s = source, settings, stall_timeout_s
        self._connection = S3Connection(settings, source.bucket, stall_timeout_s)
        self._told: tuple[ObjectInfo, Head] | None = None

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        self._connection.asked_again(lambda: self._request(item, first, last))
        receive_into(self._connection.http, target, self._uri(item))

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        prefix = self._source.prefix
        key = f"{prefix}/{name}" if prefix else name
        uri = self._source.uri_of(name)
        connection = self._connection
        connection.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            head = self._connection.asked_again(
                lambda: self._ask(key, {"Range": f"bytes=0-{first_bytes - 1}"}, uri)
            )
            return receive_found(connection.http, head, key, name, first_bytes, uri)
        finally:
            connection.be_patient(self._stall_timeout_s)

    def _ask(self, key: str, headers: dict[str, str], uri: str) -> Head:
        head = self._connection.get(key, {}, headers)
        if head.status == 416:  # an empty object has no first byte
            self._connection.http.read_body()
            head = self._connection.get(key, {}, {})
        if head.status in (200, 206):
            return head
        body = self._connection.http.read_body()
        raise error_of_response(uri, head, body, self._settings, self._source.bucket)

    def _request(self, item: ObjectInfo, first: int, last: int) -> Head:
        headers = {"Range": f"bytes={first}-{last}"}
        if item.version and not is_weak(item.version):
            headers["If-Match"] = f'"{item.version}"'
        head = self._connection.get(item.key, {}, headers)
        uri = self._uri(item)
        if head.status in (200, 206):
            check_answer(head, item, first, last, uri)
            return head
        body = self._connection.http.read_body()
        error = error_of_response(uri, head, body, self._settings, self._source.bucket)
        if head.status == 412:
            raise replaced_error(error, item, self._look(item))
        raise removed_error(error, item)

    def _look(self, item: ObjectInfo) -> Head | None:
        """The head of what is now under the key; None where it does not come: it is only asked for a message."""
        try:
            return self._connection.head(item.key, {})
        except StoreError:
            return None

    def stored_checksum(self, item: ObjectInfo) -> StoredChecksum | str:
        """See KeepsChecksums."""
        return checksum_in(self._facts(item).headers)

    def stored_digest(self, item: ObjectInfo) -> StoredDigest | None:
        """See KeepsDigests: what `headrace push` has noted."""
        return noted_digest(self._facts(item).headers.get(f"x-amz-meta-{CHECKSUM_KEY}", ""))

    def _facts(self, item: ObjectInfo) -> Head:
        """What the store says of this version; once for the object that was asked about last."""
        if self._told is None or self._told[0] != item:
            head = self._connection.asked_again(lambda: self._head(item, {"x-amz-checksum-mode": "ENABLED"}))
            check_answer(head, item, 0, item.size_bytes - 1, self._uri(item))
            self._told = item, head
        return self._told[1]

    def _head(self, item: ObjectInfo, headers: dict[str, str]) -> Head:
        head = self._connection.head(item.key, headers)
        uri = self._uri(item)
        if head.status == 404:  # without a body that could say what is not there
            raise removed_error(NotFound(uri, "", status=head.status), item)
        if head.status != 200:
            raise error_of_response(uri, head, b"", self._settings, self._source.bucket)
        return head

    def _uri(self, item: ObjectInfo) -> str:
        return f"s3://{self._source.bucket}/{item.key}"

    def abort(self) -> None:
        """See Reader.abort."""
        self._connection.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.close()
