"""Google Cloud Storage: listing and ranged reads, each pinned to the generation that was listed.

An ETag of this store changes with an object's metadata; what tells versions of the content apart is the generation.
https://cloud.google.com/storage/docs/metadata#generation-number
"""

import logging
from collections.abc import Iterator, MutableMapping
from dataclasses import replace

import msgspec

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.crc import CRC32C
from headrace.store.described import Setting
from headrace.store.errors import BadEndpoint, Changed, NotFound, StoreError, Unsupported
from headrace.store.gcs.connection import GcsConnection, object_target, objects_target
from headrace.store.gcs.listing import LIST_FIELDS, GcsPage, NotAGcsListing, parse_gcs_page
from headrace.store.gcs.settings import USER_PROJECT_VARIABLE, GcsSettings
from headrace.store.http.answer import AGAIN, check_encoding, check_range, removed_error
from headrace.store.http.connection import FIRST_STALL_TIMEOUT_S, STALL_TIMEOUT_S, Head
from headrace.store.http.receive import receive_found, receive_into
from headrace.store.http.spares import Spares
from headrace.store.paging import list_below, list_folder
from headrace.store.principal import tell_if_not_asked_for
from headrace.store.stored_checksum import StoredChecksum

_NO_CRC = "the store keeps no CRC of the whole object"
_logger = logging.getLogger(__name__)

# (key, generation) → CRC-32C as the store writes it
Crcs = MutableMapping[tuple[str, str], str]


class GcsStore:
    """One bucket and prefix, seen through resolved settings."""

    def __init__(
        self, source: ModelSource, settings: GcsSettings, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        self.source = source
        self.settings = settings
        self.stall_timeout_s = stall_timeout_s
        self._spares: Spares[GcsReader] = Spares()
        self._crcs: Crcs = {}

    @property
    def identity(self) -> str:
        """Endpoint, bucket and prefix."""
        return f"{self.settings.endpoint_url}/{self.source.bucket}/{self.source.prefix}"

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
            connection.http.close()
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

    def describe(self) -> tuple[Setting, ...]:
        """See Described.describe."""
        settings, principal = self.settings, self.settings.principal
        found = [
            Setting("endpoint", settings.endpoint_url, settings.endpoint_from),
            Setting("principal", principal.shown, principal.origin),
        ]
        if settings.user_project:
            found.append(Setting("paying project", settings.user_project, USER_PROJECT_VARIABLE))
        return tuple(found)

    def _connect(self) -> GcsConnection:
        stall_timeout_s = min(self.stall_timeout_s, FIRST_STALL_TIMEOUT_S)
        return GcsConnection(self.settings, uri=self.source.uri, stall_timeout_s=stall_timeout_s)

    def _pages(self, connection: GcsConnection, prefix: str, *, deep: bool = False) -> Iterator[GcsPage]:
        query = {"prefix": prefix, "fields": LIST_FIELDS} | ({} if deep else {"delimiter": "/"})
        while True:
            body = connection.ask("GET", objects_target(self.source.bucket, query))
            try:
                page = parse_gcs_page(body, prefix, deep=deep)
            except NotAGcsListing as error:
                raise BadEndpoint(
                    self.settings.endpoint_url,
                    f"The endpoint does not answer a listing as Cloud Storage does: {error}.",
                    remedy=f"Check {self.settings.named_by}: it must lead to the JSON API.",
                ) from None
            self._crcs.update(page.crcs)
            yield page
            if not page.next_token:
                return
            query["pageToken"] = page.next_token

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        with self._spares.lent(self.open_reader()) as reader:
            return reader.look_up(name, first_bytes)

    def open_reader(self) -> "GcsReader":
        """A connection of its own for one thread; one that a look-up has left open, if there is one."""
        return self._spares.take() or GcsReader(self.source, self.settings, self.stall_timeout_s, self._crcs)


class GcsReader:
    """Ranged reads of listed objects, each pinned to the listed generation."""

    def __init__(
        self, source: ModelSource, settings: GcsSettings, stall_timeout_s: float, crcs: Crcs
    ) -> None:
        """Args: crcs: what listings have told of checksums; look-ups add to it."""
        self._source, self._crcs, self._stall_timeout_s = source, crcs, stall_timeout_s
        self._connection = GcsConnection(settings, uri=source.uri, stall_timeout_s=stall_timeout_s)

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        self._connection.with_renewal(lambda: self._request(item, first, last))
        receive_into(self._connection.http, target, self._uri(item.key))

    def _request(self, item: ObjectInfo, first: int, last: int) -> None:
        query = {"alt": "media", "generation": item.version}
        uri = self._uri(item.key)
        head = self._get(item.key, query, {"Range": f"bytes={first}-{last}"})
        if head.status not in (200, 206):
            error = self._connection.error(uri, head, self._connection.http.read_body())
            # Of a bucket without versions an overwritten generation is simply not there.
            raise self._gone(error, item) if isinstance(error, NotFound) else error
        _refuse_transcoded(head, uri)
        generation = head.headers.get("x-goog-generation", item.version)
        if generation != item.version:  # a server that ignores what was asked for
            raise _replaced(uri, item, f"now generation {generation:.40}", head.status)
        check_range(head, item, first, last, uri)

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        key = f"{self._source.prefix}/{name}" if self._source.prefix else name
        http = self._connection.http
        http.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            return self._connection.with_renewal(lambda: self._look_up(key, name, first_bytes))
        finally:
            http.be_patient(self._stall_timeout_s)

    def _look_up(self, key: str, name: str, first_bytes: int) -> Found:
        uri, http = self._uri(key), self._connection.http
        head = self._get(key, {"alt": "media"}, {"Range": f"bytes=0-{first_bytes - 1}"})
        if head.status == 416:  # an empty object has no first byte
            http.read_body()
            head = self._get(key, {"alt": "media"}, {})
        if head.status not in (200, 206):
            raise self._connection.error(uri, head, http.read_body())
        _refuse_transcoded(head, uri)
        generation = head.headers.get("x-goog-generation", "")
        if not (generation.isascii() and generation.isdigit()):
            raise Unsupported(
                uri,
                "The answer does not name the object's generation, which reads are pinned to.",
                remedy="Check that no proxy on the way drops x-goog-generation.",
                status=head.status,
            )
        found = receive_found(http, head, key, name, first_bytes, uri)
        if crc := _crc_in(head):
            self._crcs[key, generation] = crc
        return Found(replace(found.item, version=generation), found.prefix)

    def _get(self, key: str, query: dict[str, str], headers: dict[str, str]) -> Head:
        return self._connection.send("GET", object_target(self._source.bucket, key, query), headers)

    def _gone(self, error: StoreError, item: ObjectInfo) -> StoreError:
        """What a listed generation that is not there any more means; what is there is only asked for a message."""
        try:
            now = self._look_up(item.key, item.name, 1).item
        except NotFound:
            return removed_error(error, item)
        except StoreError:
            return _replaced(error.uri, item, "now something else", error.status)
        return _replaced(
            error.uri, item, f"now generation {now.version} of {now.size_bytes:,} bytes", error.status
        )

    def stored_checksum(self, item: ObjectInfo) -> StoredChecksum | str:
        """See KeepsChecksums. Listings and look-ups tell it; it is asked for where another store made those."""
        text = self._crcs.get((item.key, item.version))
        if text is None:
            text = self._connection.with_renewal(lambda: self._ask_for_crc(item))
        value = CRC32C.decode(text)
        return _NO_CRC if value is None else StoredChecksum(CRC32C, value)

    def _ask_for_crc(self, item: ObjectInfo) -> str:
        head = self._get(item.key, {"generation": item.version, "fields": "generation,crc32c"}, {})
        body = self._connection.http.read_body()
        uri = self._uri(item.key)
        if head.status != 200:
            raise removed_error(self._connection.error(uri, head, body), item)
        try:
            facts = msgspec.json.decode(body, type=dict[str, object])
        except msgspec.MsgspecError:
            raise Unsupported(uri, "The store does not tell the object's facts as JSON.") from None
        if facts.get("generation") != item.version:
            raise _replaced(uri, item, f"now generation {facts.get('generation')!s:.40}", head.status)
        return str(facts.get("crc32c", ""))

    def _uri(self, key: str) -> str:
        return f"gs://{self._source.bucket}/{key}"

    def abort(self) -> None:
        """See Reader.abort."""
        self._connection.http.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.http.close()


def _replaced(uri: str, item: ObjectInfo, now: str, status: int | None) -> Changed:
    listed = f"generation {item.version} of {item.size_bytes:,} bytes"
    return Changed(
        uri,
        f"The object was replaced after it was listed. Listed: {listed}; {now}.",
        remedy=AGAIN,
        status=status,
    )


def _refuse_transcoded(head: Head, uri: str) -> None:
    """An object that is stored compressed is unpacked on the way, so that neither ranges nor sizes are of it.

    https://cloud.google.com/storage/docs/transcoding
    """
    check_encoding(head, uri)
    stored = head.headers.get("x-goog-stored-content-encoding", "").lower()
    if stored not in ("", "identity"):
        raise Unsupported(
            uri,
            f"The object is stored with Content-Encoding: {stored:.40}, and unpacked by the store when it is read.",
            remedy="Upload it without Content-Encoding.",
            status=head.status,
        )


def _crc_in(head: Head) -> str:
    """The CRC-32C of x-goog-hash, "" where there is none."""
    parts = (part.strip().partition("=") for part in head.headers.get("x-goog-hash", "").split(","))
    return next((value for name, _, value in parts if name == "crc32c"), "")
