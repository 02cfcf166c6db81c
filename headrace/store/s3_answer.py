"""Proving a ranged read's answer by its head: version, encoding, range and length, before a byte is taken."""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

from headrace.source.objects import ObjectInfo
from headrace.store.errors import Changed, Unsupported
from headrace.store.http import Head
from headrace.store.s3_listing import is_weak, normal_etag

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_AGAIN = "Start again once the upload is complete; a load never mixes two versions."
_RANGES_REMEDY = "Use a store (or a proxy before it) that answers ranged reads as RFC 9110 says."


def check_answer(head: Head, item: ObjectInfo, first: int, last: int, uri: str) -> None:
    """Prove that a 200 or 206 holds bytes [first, last] of the listed version of the object.

    Raises:
        Changed: it is another version.
        Unsupported: it is encoded, or of another range than was asked for.
    """
    _check_version(head, item, uri)
    encoding = head.headers.get("content-encoding", "").lower()
    if encoding not in ("", "identity", "aws-chunked"):
        raise Unsupported(
            uri,
            f"The store sends the object as {encoding}.",
            remedy="Upload it without Content-Encoding.",
            status=head.status,
        )
    _check_range(head, item, first, last, uri)


def _check_version(head: Head, item: ObjectInfo, uri: str) -> None:
    etag = normal_etag(head.headers.get("etag", ""))
    # A proxy may weaken a tag on the way: the opaque part tells all the same.
    if etag and item.version and etag.removeprefix("W/") != item.version.removeprefix("W/"):
        raise Changed(
            uri,
            f"The object was replaced: listed as {item.version:.80}, now {etag:.80}.",
            remedy=_AGAIN,
            status=head.status,
        )
    if etag and item.version and not is_weak(item.version):
        return
    modified_s = _seconds(head.headers.get("last-modified", ""))
    if None not in (modified_s, item.modified_s) and modified_s != item.modified_s:
        raise Changed(
            uri,
            "The object was written to after it was listed (Last-Modified differs).",
            remedy=_AGAIN,
            status=head.status,
        )


def _check_range(head: Head, item: ObjectInfo, first: int, last: int, uri: str) -> None:
    length = head.headers.get("content-length")
    asked = f"Bytes {first}-{last} of {item.size_bytes} were asked for"
    if head.status == 200:
        if first != 0 or last != item.size_bytes - 1:
            raise Unsupported(
                uri, f"{asked}, the whole object was sent.", remedy=_RANGES_REMEDY, status=head.status
            )
        if length is not None and int(length) != item.size_bytes:
            raise Changed(
                uri,
                f"The object has {int(length):,} bytes, but was listed with {item.size_bytes:,}.",
                remedy=_AGAIN,
                status=head.status,
            )
        return
    match = _CONTENT_RANGE.fullmatch(head.headers.get("content-range", ""))
    if match is None:
        raise Unsupported(
            uri,
            f"{asked}, but the answer has no valid Content-Range.",
            remedy=_RANGES_REMEDY,
            status=head.status,
        )
    got_first, got_last, total = map(int, match.groups())
    if total != item.size_bytes:
        raise Changed(
            uri,
            f"The object has {total:,} bytes, but was listed with {item.size_bytes:,}.",
            remedy=_AGAIN,
            status=head.status,
        )
    if (got_first, got_last) != (first, last):
        raise Unsupported(
            uri, f"{asked}, {got_first}-{got_last} were sent.", remedy=_RANGES_REMEDY, status=head.status
        )
    if length is not None and int(length) != last - first + 1:
        raise Unsupported(
            uri, f"{asked}, but the body has {length} bytes.", remedy=_RANGES_REMEDY, status=head.status
        )


def _seconds(text: str) -> int | None:
    try:
        moment = parsedate_to_datetime(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None
