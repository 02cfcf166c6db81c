"""Taking a proved answer's body into memory, and finding out what an object is from its first bytes."""

from headrace.source.objects import ObjectInfo
from headrace.store.base import Found, Target
from headrace.store.errors import TransientError, Unsupported
from headrace.store.http.answer import RANGES_REMEDY, check_encoding, content_range
from headrace.store.http.connection import Head, HttpConnection
from headrace.store.versions import http_date_s, normal_etag


def receive_into(http: HttpConnection, target: Target, uri: str) -> None:
    """Receive a body that is as long as the target's missing bytes, and not a byte more.

    Raises:
        TransientError: it ended early; what has arrived counts.
        Unsupported: it is longer.
    """
    while len(view := target.next_view()):
        if http.fill(view, target) == 0:  # a chunked body; others are known to be as long as the range
            raise TransientError(uri, f"The body ended after {target.received:,} of {target.size:,} bytes.")
    # Reads the end mark of a chunked body, so that the connection can be used again.
    if http.read_into(memoryview(bytearray(1))):
        raise Unsupported(uri, f"The body is longer than the {target.size:,} bytes asked for.")


def receive_found(http: HttpConnection, head: Head, key: str, name: str, first_bytes: int, uri: str) -> Found:
    """What a 200 or 206 to an unpinned read of bytes [0, first_bytes) says of the object.

    A server that does not know ranges sends it all: the connection is closed once the first bytes are there.

    Raises:
        Unsupported: the answer does not say how large the object is, or is of another range.
        TransientError: the body ended early.
    """
    check_encoding(head, uri)
    size = _size_of(head, first_bytes, uri)
    if size is None:  # all of the object, of unknown length
        prefix = http.read_body(first_bytes + 1)
        if len(prefix) > first_bytes:
            raise Unsupported(uri, "The server does not say how large the object is.", remedy=RANGES_REMEDY)
        size = len(prefix)
    else:
        prefix = _receive_first(http, head, min(size, first_bytes), uri)
    version, modified_s = (
        normal_etag(head.headers.get("etag", "")),
        http_date_s(head.headers.get("last-modified", "")),
    )
    return Found(ObjectInfo(key, name, size, version, modified_s), prefix)


def _receive_first(http: HttpConnection, head: Head, length: int, uri: str) -> bytes:
    buffer = bytearray(length)
    target = Target([memoryview(buffer)])
    if head.status == 206:
        receive_into(http, target, uri)
        return bytes(buffer)
    while len(view := target.next_view()):
        target.received += http.read_into(view)
    if head.headers.get("content-length") == str(length):
        http.read_into(memoryview(bytearray(1)))  # the connection can be used again
    else:
        http.close()
    return bytes(buffer)


def _size_of(head: Head, first_bytes: int, uri: str) -> int | None:
    """The object's size; None for a 200 that does not tell."""
    length = head.headers.get("content-length")
    if head.status == 200:
        return int(length) if length is not None and "transfer-encoding" not in head.headers else None
    sent = content_range(head)
    asked = f"The first {first_bytes:,} bytes were asked for"
    if sent is None:
        raise Unsupported(
            uri,
            f"{asked}, but the answer has no valid Content-Range.",
            remedy=RANGES_REMEDY,
            status=head.status,
        )
    if (sent.first, sent.last) != (0, min(first_bytes, sent.total) - 1):
        raise Unsupported(
            uri, f"{asked}, {sent.first}-{sent.last} were sent.", remedy=RANGES_REMEDY, status=head.status
        )
    if length is not None and int(length) != sent.last + 1:
        raise Unsupported(
            uri, f"{asked}, but the body has {length} bytes.", remedy=RANGES_REMEDY, status=head.status
        )
    return sent.total
