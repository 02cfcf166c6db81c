"""S3-compatible stores: signed listing and pinned, ranged reads over our own connections."""

import contextlib
import re
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from headrace.source.objects import Listing, ObjectInfo
from headrace.source.uri import ModelSource
from headrace.store.base import Target
from headrace.store.errors import BadEndpoint, Changed, NotFound, Truncated, Unsupported
from headrace.store.http import Head, HttpConnection, endpoint_of
from headrace.store.s3_errors import error_of_response
from headrace.store.s3_settings import S3Settings

_MAX_LIST_BYTES = 16 << 20
_MAX_OBJECTS = 100_000
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class S3Store:
    """One bucket and prefix, seen through resolved settings."""

    def __init__(self, source: ModelSource, settings: S3Settings) -> None:
        settings.frozen_credentials()  # missing credentials are an error before anything is sent
        self.source = source
        self.settings = settings

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
        connection = S3Connection(self.settings, self.source.bucket)
        try:
            prefix = self.source.prefix + "/" if self.source.prefix else ""
            listing = self._list(connection, prefix)
            if not listing.objects and not listing.folders:
                raise self._nothing_there(connection)
            return listing
        finally:
            connection.close()

    def _list(self, connection: "S3Connection", prefix: str, max_pages: int | None = None) -> Listing:
        objects: list[ObjectInfo] = []
        folders: list[str] = []
        token = ""
        pages = 0
        while True:
            query = {"delimiter": "/", "encoding-type": "url", "list-type": "2", "prefix": prefix}
            if token:
                query["continuation-token"] = token
            head, body = connection.fetch("", query, limit_bytes=_MAX_LIST_BYTES)
            if head.status != 200:
                raise error_of_response(self.source.uri, head, body, self.settings, self.source.bucket)
            page = self._parse(body)
            for item in page.iterfind("{*}Contents"):
                key = unquote(_text(item, "Key"))
                name = key[len(prefix) :]
                if name:
                    etag = normal_etag(_text(item, "ETag"))
                    objects.append(ObjectInfo(key, name, int(_text(item, "Size") or -1), etag))
            for item in page.iterfind("{*}CommonPrefixes"):
                folders.append(unquote(_text(item, "Prefix"))[len(prefix) :].rstrip("/"))
            token = _text(page, "NextContinuationToken")
            pages += 1
            if _text(page, "IsTruncated") != "true" or not token or pages == max_pages:
                break
            if len(objects) > _MAX_OBJECTS:
                raise Unsupported(
                    self.source.uri,
                    f"More than {_MAX_OBJECTS:,} objects lie directly under this prefix.",
                    remedy="Name the folder that holds one model.",
                )
        return Listing(tuple(sorted(objects, key=lambda item: item.name)), tuple(sorted(folders)))

    def _parse(self, body: bytes) -> ElementTree.Element:
        with contextlib.suppress(ElementTree.ParseError):
            root = ElementTree.fromstring(body)
            if root.tag.rpartition("}")[2] == "ListBucketResult":
                return root
        raise BadEndpoint(
            self.settings.endpoint_url,
            "The endpoint does not answer a listing as an S3 store does.",
            remedy="Check that AWS_ENDPOINT_URL is the store's S3 API (not its web console).",
        )

    def _nothing_there(self, connection: "S3Connection") -> NotFound:
        parent, _, last = self.source.prefix.rpartition("/")
        around = self._list(connection, parent + "/" if parent else "", max_pages=1)
        place = f"s3://{self.source.bucket}/{parent}".rstrip("/")
        if around.find(last) is not None and last:
            return NotFound(
                self.source.uri, "This is one object, not a folder.", remedy=f"Give the folder: {place}."
            )
        names = [folder + "/" for folder in around.folders] + [item.name for item in around.objects]
        shown = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        there = f"In {place} there is: {shown}." if names else f"{place} is empty."
        return NotFound(
            self.source.uri,
            f"Nothing lies under this prefix. {there}",
            remedy="Correct the prefix, or upload the model with `headrace push`.",
        )

    def open_reader(self) -> "S3Reader":
        """A connection of its own for one thread."""
        return S3Reader(self)


class S3Connection:
    """Signed GET requests for one bucket."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        parts = urlsplit(settings.endpoint_url)
        self._settings = settings
        in_host = not settings.path_style and "." not in bucket
        self._path = "/" if in_host else f"/{quote(bucket)}/"
        self._netloc = f"{bucket}.{parts.netloc}" if in_host else parts.netloc
        self._origin = f"{parts.scheme}://{self._netloc}"
        self.http = HttpConnection(endpoint_of(self._origin, settings.ca_bundle))

    def get(self, key: str, query: dict[str, str], headers: dict[str, str]) -> Head:
        """Send a signed GET and read the head; the body is to be read from `http`."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        target = self._path + quote(key, safe="/-._~")
        if query:
            target += "?" + "&".join(
                f"{quote(name, safe='-._~')}={quote(value, safe='-._~')}"
                for name, value in sorted(query.items())
            )
        request = AWSRequest("GET", self._origin + target, headers=dict(headers))
        # Credentials are asked for anew each time: they may expire during a long load.
        S3SigV4Auth(self._settings.frozen_credentials(), "s3", self._settings.region).add_auth(request)
        signed = [("Host", self._netloc), ("Accept-Encoding", "identity"), ("User-Agent", "headrace")]
        signed += [(name, str(value)) for name, value in request.headers.items() if name.lower() != "host"]
        return self.http.request("GET", target, signed)

    def fetch(self, key: str, query: dict[str, str], *, limit_bytes: int) -> tuple[Head, bytes]:
        """A signed GET with its whole body."""
        head = self.get(key, query, {})
        return head, self.http.read_body(limit_bytes)

    def close(self) -> None:
        """Close the connection."""
        self.http.close()


class S3Reader:
    """Ranged reads of listed objects, each pinned to the listed version."""

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._connection = S3Connection(store.settings, store.source.bucket)

    def read_into(self, item: ObjectInfo, start: int, target: Target) -> None:
        """See Reader.read_into."""
        if target.received == target.size:
            return
        first, last = start + target.received, start + target.size - 1
        headers = {"Range": f"bytes={first}-{last}"}
        if item.version and not item.version.startswith("W/"):
            headers["If-Match"] = f'"{item.version}"'
        head = self._connection.get(item.key, {}, headers)
        self._check(item, head, first, last)
        http = self._connection.http
        while len(view := target.next_view()):
            count = http.read_into(view)
            if count == 0:
                http.close()
                raise Truncated(
                    self._uri(item), f"The body ended after {target.received:,} of {target.size:,} bytes."
                )
            target.received += count
        # Reads the end mark of a chunked body, so that the connection can be used again.
        if http.read_into(memoryview(bytearray(1))):
            http.close()
            raise Unsupported(self._uri(item), f"The body is longer than the range {first}-{last}.")

    def _check(self, item: ObjectInfo, head: Head, first: int, last: int) -> None:
        """Prove status, version and range before a byte is taken."""
        uri = self._uri(item)
        if head.status == 412:
            self._connection.close()
            raise Changed(uri, "The object was replaced after it was listed.", status=412, remedy=_AGAIN)
        if head.status not in (200, 206):
            body = self._connection.http.read_body()
            settings, bucket = self._store.settings, self._store.source.bucket
            error = error_of_response(uri, head, body, settings, bucket)
            if head.status == 404:
                raise Changed(uri, "The object vanished after it was listed.", status=404, remedy=_AGAIN)
            raise error
        try:
            self._check_version(item, head, uri)
            self._check_range(item, head, first, last, uri)
        except Exception:
            self._connection.close()
            raise

    def _check_version(self, item: ObjectInfo, head: Head, uri: str) -> None:
        etag = normal_etag(head.headers.get("etag", ""))
        if etag and item.version and etag != item.version:
            raise Changed(
                uri, f"The object was replaced: listed as {item.version}, now {etag}.", remedy=_AGAIN
            )
        if head.headers.get("content-encoding", "identity").lower() not in ("identity", "aws-chunked", ""):
            raise Unsupported(
                uri,
                f"The store sends the object as {head.headers['content-encoding']}.",
                remedy="Upload it without Content-Encoding.",
            )

    def _check_range(self, item: ObjectInfo, head: Head, first: int, last: int, uri: str) -> None:
        length = head.headers.get("content-length")
        if head.status == 200:
            if first == 0 and last == item.size_bytes - 1 and length in (None, str(item.size_bytes)):
                return
            raise Unsupported(
                uri, "The store answered a ranged read with the whole object (HTTP 200).", status=200
            )
        match = _CONTENT_RANGE.fullmatch(head.headers.get("content-range", ""))
        if match is None:
            raise Unsupported(
                uri, "The store's answer to a ranged read has no valid Content-Range.", status=206
            )
        got_first, got_last, total = map(int, match.groups())
        if total != item.size_bytes:
            raise Changed(
                uri,
                f"The object has {total:,} bytes, but was listed with {item.size_bytes:,}.",
                remedy=_AGAIN,
            )
        if (got_first, got_last) != (first, last) or length not in (None, str(last - first + 1)):
            raise Unsupported(
                uri, f"Bytes {first}-{last} were asked for, {got_first}-{got_last} were sent.", status=206
            )

    def _uri(self, item: ObjectInfo) -> str:
        return f"s3://{self._store.source.bucket}/{item.key}"

    def abort(self) -> None:
        """See Reader.abort."""
        self._connection.http.abort()

    def close(self) -> None:
        """See Reader.close."""
        self._connection.close()


_AGAIN = "Start again once the upload is complete; a load never mixes two versions."


def normal_etag(etag: str) -> str:
    """The tag without quotes; a weak one keeps its W/ mark."""
    etag = etag.strip().replace("&quot;", '"')
    weak = etag.startswith("W/")
    return ("W/" if weak else "") + etag.removeprefix("W/").strip('"')


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""
