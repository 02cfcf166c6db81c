"""Proving a ranged read's answer by its head: version, encoding, range and length, before a byte is taken."""

import math
import re
from dataclasses import dataclass

from headrace.source.objects import ObjectInfo
from headrace.store.errors import Changed, NotFound, StoreError, Unsupported
from headrace.store.http.connection import Head
from headrace.store.versions import http_date_s, is_weak, normal_etag, utc_text, version_text

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
AGAIN = "Start again once the upload is complete; a load never mixes two versions."
_LONGEST_TEXT = 300
RANGES_REMEDY = "Use a store (or a proxy before it) that answers ranged reads as RFC 9110 says."


@dataclass(frozen=True, slots=True)
class ContentRange:
    """What a 206 says that it holds: bytes [first, last] of `total`."""

    first: int
    last: int
    total: int


def content_range(head: Head) -> ContentRange | None:
    """The Content-Range of a 206; None where there is none, or one without a total."""
    match = _CONTENT_RANGE.fullmatch(head.headers.get("content-range", ""))
    return ContentRange(*map(int, match.groups())) if match else None


def check_answer(head: Head, item: ObjectInfo, first: int, last: int, uri: str) -> None:
    """Prove that a 200 or 206 holds bytes [first, last] of the listed version of the object.

    Raises:
        Changed: it is another version.
        Unsupported: it is encoded, or of another range than was asked for.
    """
    _check_version(head, item, uri)
    check_encoding(head, uri)
    check_range(head, item, first, last, uri)


def check_encoding(head: Head, uri: str) -> None:
    """Prove that the body is the object itself and no encoding of it. Raises Unsupported."""
    encoding = head.headers.get("content-encoding", "").lower()
    if encoding not in ("", "identity", "aws-chunked"):
        raise Unsupported(
            uri,
            f"The store sends the object as {encoding}.",
            remedy="Upload it without Content-Encoding.",
            status=head.status,
        )


def _check_version(head: Head, item: ObjectInfo, uri: str) -> None:
    etag = normal_etag(head.headers.get("etag", ""))
    # A proxy may weaken a tag on the way: the opaque part tells all the same.
    if etag and item.version and etag.removeprefix("W/") != item.version.removeprefix("W/"):
        raise Changed(
            uri,
            f"The object was replaced: listed as {item.version:.80}, now {etag:.80}.",
            remedy=AGAIN,
            status=head.status,
        )
    if etag and item.version and not is_weak(item.version):
        return
    modified_s = http_date_s(head.headers.get("last-modified", ""))
    if modified_s is not None and item.modified_s is not None and modified_s != item.modified_s:
        raise Changed(
            uri,
            "The object was written to after it was listed (Last-Modified differs). "
            f"Listed: written {utc_text(item.modified_s)}; now {utc_text(modified_s)}.",
            remedy=AGAIN,
            status=head.status,
        )


def check_range(head: Head, item: ObjectInfo, first: int, last: int, uri: str) -> None:
    """Prove that a 200 or 206 holds bytes [first, last] of an object of the listed size, whatever its version.

    Raises:
        Changed: the size is another one.
        Unsupported: it is of another range than was asked for, or does not say of which.
    """
    length = head.headers.get("content-length")
    asked = f"Bytes {first}-{last} of {item.size_bytes} were asked for"
    if head.status == 200:
        if first != 0 or last != item.size_bytes - 1:
            raise Unsupported(
                uri, f"{asked}, the whole object was sent.", remedy=RANGES_REMEDY, status=head.status
            )
        if length is not None and int(length) != item.size_bytes:
            raise Changed(
                uri,
                f"The object has {int(length):,} bytes, but was listed with {item.size_bytes:,}.",
                remedy=AGAIN,
                status=head.status,
            )
        return
    sent = content_range(head)
    if sent is None:
        raise Unsupported(
            uri,
            f"{asked}, but the answer has no valid Content-Range.",
            remedy=RANGES_REMEDY,
            status=head.status,
        )
    got_first, got_last, total = sent.first, sent.last, sent.total
    if total != item.size_bytes:
        raise Changed(
            uri,
            f"The object has {total:,} bytes, but was listed with {item.size_bytes:,}.",
            remedy=AGAIN,
            status=head.status,
        )
    if (got_first, got_last) != (first, last):
        raise Unsupported(
            uri, f"{asked}, {got_first}-{got_last} were sent.", remedy=RANGES_REMEDY, status=head.status
        )
    if length is not None and int(length) != last - first + 1:
        raise Unsupported(
            uri, f"{asked}, but the body has {length} bytes.", remedy=RANGES_REMEDY, status=head.status
        )


def replaced_error(error: StoreError, item: ObjectInfo, now: Head | None) -> Changed:
    """The error of a pinned read whose condition failed; `now` is the head of what is there, if it came."""
    if now is None or now.status not in (200, 404):
        found = "now something else"
    elif now.status == 404:
        found = "now nothing"
    else:
        length = now.headers.get("content-length")
        found = "now " + version_text(
            int(length) if length is not None and length.isascii() and length.isdigit() else None,
            normal_etag(now.headers.get("etag", "")),
            http_date_s(now.headers.get("last-modified", "")),
        )
    return _changed(error, item, "The object was replaced after it was listed.", found)


def removed_error(error: StoreError, item: ObjectInfo) -> StoreError:
    """The error of a read of a listed object: that it changed, where it is gone, else as it is."""
    if not isinstance(error, NotFound):
        return error
    return _changed(error, item, "The object was removed after it was listed.", "now nothing")


def _changed(error: StoreError, item: ObjectInfo, what: str, found: str) -> Changed:
    listed = version_text(item.size_bytes, item.version, item.modified_s)
    return Changed(
        error.uri,
        f"{what} Listed: {listed}; {found}.",
        remedy=AGAIN,
        status=error.status,
        code=error.code,
        request_id=error.request_id,
    )


def retry_after_s(head: Head) -> float | None:
    """How long an answer asks to wait, in seconds.

    A date counts from the answer's own Date, so that this machine's clock does not matter; None without one.
    """
    value = head.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        until, now = http_date_s(value), http_date_s(head.headers.get("date", ""))
        return None if until is None or now is None else max(0.0, until - now)
    return seconds if math.isfinite(seconds) else None


def shortened(text: str) -> str:
    """One line of bounded length of what a server says, for the log."""
    return re.sub(r"\s+", " ", text).strip()[:_LONGEST_TEXT]
