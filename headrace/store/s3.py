"""S3-compatible stores: signed listing and pinned, ranged reads over our own connections."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import quote, urlsplit

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.answer import check_answer, removed_error, replaced_error
from headrace.store.base import Found, Target, refuse_odd_name
from headrace.store.connect import endpoint_of
from headrace.store.errors import (
    AccessDenied,
    BadEndpoint,
    BadSignature,
    ExpiredCredentials,
    NoCredentials,
    NotFound,
    StoreError,
    Unsupported,
)
from headrace.store.http import FIRST_STALL_TIMEOUT_S, STALL_TIMEOUT_S, Head, HttpConnection
from headrace.store.receive import receive_found, receive_into
from headrace.store.s3_errors import error_of_response
from headrace.store.s3_listing import ListPage, NotAListing, parse_page
from headrace.store.s3_settings import S3Settings
from headrace.store.spares import Spares
from headrace.store.stored_checksum import StoredChecksum, checksum_in
from headrace.store.versions import is_weak, warn_of_weak_versions

_MAX_LIST_BYTES = 16 << 20
_MAX_OBJECTS = 100_000
_MAX_PAGES = 1_000


class S3Store:
    """One bucket and prefix, seen through resolved settings."""

    def __init__(
        self, source: ModelSource, settings: S3Settings, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        """Raises NoCredentials, before anything is sent."""
        settings.frozen_credentials()
        self.source = source
        self.settings = settings
        self.stall_timeout_s = stall_timeout_s
        self._spares: Spares[S3Reader] = Spares()

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
        stall_timeout_s = min(self.stall_timeout_s, FIRST_STALL_TIMEOUT_S)
        connection = S3Connection(self.settings, self.source.bucket, stall_timeout_s)
        try:
            prefix = self.source.prefix + "/" if self.source.prefix else ""
            listing = self._list(connection, prefix, _MAX_PAGES)
            if not listing.objects and not listing.folders:
                raise self._nothing_there(connection)
        finally:
            connection.close()
        warn_of_weak_versions(self.source.uri, listing)
        return listing

    def list_below(self, folder: str = "") -> Iterator[ObjectInfo]:
        """See ListsBelow.list_below."""
        prefix = self.source.prefix + "/" if self.source.prefix else ""
        below = f"{folder}/" if folder else ""
        connection = S3Connection(
            self.settings, self.source.bucket, min(self.stall_timeout_s, FIRST_STALL_TIMEOUT_S)
        )
        try:
            token = ""
            while True:
                page = self._page(connection, prefix + below, token, deep=True)
                yield from (replace(item, name=below + item.name) for item in page.objects)
                token = page.next_token
                if not token:
                    return
        finally:
            connection.close()

    def _list(self, connection: "S3Connection", prefix: str, max_pages: int) -> Listing:
        objects: list[ObjectInfo] = []
        folders: dict[str, None] = {}
        token = ""
        for _ in range(max_pages):
            page = self._page(connection, prefix, token)
            objects += page.objects
            folders.update(dict.fromkeys(page.folders))
            token = page.next_token
            if not token:
                break
            if len(objects) + len(folders) > _MAX_OBJECTS:
                raise self._too_many()
        if token and max_pages == _MAX_PAGES:
            raise self._too_many()
        return Listing(tuple(sorted(objects, key=lambda item: item.name)), tuple(sorted(folders)))

    def _page(self, connection: "S3Connection", prefix: str, token: str, *, deep: bool = False) -> ListPage:
        query = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
        if not deep:
            query["delimiter"] = "/"
        if token:
            query["continuation-token"] = token
        head, body = connection.fetch("", query, limit_bytes=_MAX_LIST_BYTES)
        if head.status != 200:
            raise error_of_response(self.source.uri, head, body, self.settings, self.source.bucket)
        try:
            return parse_page(body, prefix, deep=deep)
        except NotAListing as error:
            raise BadEndpoint(
                self.settings.endpoint_url,
                f"The endpoint does not answer a listing as an S3 store does: {error}.",
                remedy="Check that AWS_ENDPOINT_URL is the store's S3 API (not its web console).",
            ) from None

    def _too_many(self) -> Unsupported:
        return Unsupported(
            self.source.uri,
            f"More than {_MAX_OBJECTS:,} objects or {_MAX_PAGES:,} pages lie directly under this prefix.",
            remedy="Name the folder that holds one model.",
        )

    def _nothing_there(self, connection: "S3Connection") -> NotFound:
        parent, _, last = self.source.prefix.rpartition("/")
        place = f"s3://{self.source.bucket}/{parent}".rstrip("/")
        remedy = "Correct the prefix, or upload the model with `headrace push`."
        try:
            around = self._list(connection, parent + "/" if parent else "", max_pages=1)
        except StoreError:
            # Who may list a model's prefix need not have the right to list what lies around it.
            return NotFound(self.source.uri, "Nothing lies under this prefix.", remedy=remedy)
        if last and around.find(last) is not None:
            return NotFound(
                self.source.uri, "This is one object, not a folder.", remedy=f"Give the folder: {place}."
            )
        names = [folder + "/" for folder in around.folders] + [item.name for item in around.objects]
        shown = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        there = f"In {place} there is: {shown}." if names else f"{place} is empty."
        return NotFound(self.source.uri, f"Nothing lies under this prefix. {there}", remedy=remedy)

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        refuse_odd_name(name, self.source.uri)
        reader = self.open_reader()
        try:
            found = reader.look_up(name, first_bytes)
        except BaseException:
            reader.close()
            raise
        self._spares.give(reader)
        return found

    def open_reader(self) -> "S3Reader":
        """A connection of its own for one thread; one that a look-up has left open, if there is one."""
        return self._spares.take() or S3Reader(self.source, self.settings, self.stall_timeout_s)


class S3Connection:
    """Signed GET and HEAD requests for one bucket."""

    def __init__(self, settings: S3Settings, bucket: str, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        parts = urlsplit(settings.endpoint_url)
        self._settings = settings
        in_host = not settings.path_style and "." not in bucket
        self._path = "/" if in_host else f"/{quote(bucket)}/"
        self._netloc = f"{bucket}.{parts.netloc}" if in_host else parts.netloc
        self._origin = f"{parts.scheme}://{self._netloc}"
        self.http = HttpConnection(
            endpoint_of(self._origin, settings.trust, named_by="AWS_ENDPOINT_URL"),
            stall_timeout_s=stall_timeout_s,
        )

    def get(self, key: str, query: dict[str, str], headers: dict[str, str]) -> Head:
        """Send a signed GET and read the head; the body is to be read from `http`."""
        return self._send("GET", key, query, headers)

    def head(self, key: str, headers: dict[str, str]) -> Head:
        """What a GET of the object would begin with."""
        return self._send("HEAD", key, {}, headers)

    def _send(self, method: str, key: str, query: dict[str, str], headers: dict[str, str]) -> Head:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        target = self._path + quote(key, safe="/-._~")
        if query:
            target += "?" + "&".join(
                f"{quote(name, safe='-._~')}={quote(value, safe='-._~')}"
                for name, value in sorted(query.items())
            )
        # Host is given, so that what is signed is what is sent whatever the port and the letters' case.
        request = AWSRequest(method, self._origin + target, headers={"Host": self._netloc, **headers})
        # Credentials are asked for anew each time: they may expire during a long load.
        S3SigV4Auth(self._settings.frozen_credentials(), "s3", self._settings.region).add_auth(request)
        signed = [(name, str(value)) for name, value in request.headers.items()]
        if not all(value.isascii() and value.isprintable() for _, value in signed):
            raise NoCredentials(
                self._origin,
                "The access key, the session token or the region holds a character that no request can carry.",
                remedy="Check AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN and AWS_REGION for stray characters.",
            )
        return self.http.request(
            target, [*signed, ("Accept-Encoding", "identity"), ("User-Agent", "headrace")], method=method
        )

    def fetch(self, key: str, query: dict[str, str], *, limit_bytes: int) -> tuple[Head, bytes]:
        """A signed GET with its whole body."""
        head = self.get(key, query, {})
        return head, self.http.read_body(limit_bytes)

    def close(self) -> None:
        """Close the connection."""
        self.http.close()


class S3Reader:
    """Ranged reads of listed objects, each pinned to the listed version."""

    def __init__(self, source: ModelSource, settings: S3Settings, stall_timeout_s: float) -> None:
        self._source, self._settings, self._stall_timeout_s = source, settings, stall_timeout_s
        self._connection = S3Connection(settings, source.bucket, stall_timeout_s)

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        self._with_renewal(lambda: self._request(item, first, last))
        receive_into(self._connection.http, target, self._uri(item))

    def look_up(self, name: str, first_bytes: int) -> Found:
        """See Store.look_up."""
        prefix = self._source.prefix
        key = f"{prefix}/{name}" if prefix else name
        uri = self._source.uri_of(name)
        http = self._connection.http
        http.be_patient(min(self._stall_timeout_s, FIRST_STALL_TIMEOUT_S))
        try:
            head = self._with_renewal(lambda: self._ask(key, {"Range": f"bytes=0-{first_bytes - 1}"}, uri))
            return receive_found(http, head, key, name, first_bytes, uri)
        finally:
            http.be_patient(self._stall_timeout_s)

    def _with_renewal(self, request: Callable[[], Head]) -> Head:
        """Make a request; once more with other credentials, if there are others now.

        They may have expired or been rotated since the listing.
        """
        settings = self._settings
        used = settings.frozen_credentials()
        try:
            return request()
        except (ExpiredCredentials, AccessDenied, BadSignature):
            if not settings.renew_credentials(used):
                raise
            return request()

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
        head = self._with_renewal(lambda: self._head(item, {"x-amz-checksum-mode": "ENABLED"}))
        check_answer(head, item, 0, item.size_bytes - 1, self._uri(item))
        return checksum_in(head.headers)

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
        self._connection.http.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.close()
