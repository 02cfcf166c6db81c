"""Reading a ListObjectsV2 answer: XML from a store that may be anything, proved before it is used.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from headrace.source.objects import ObjectInfo
from headrace.store.versions import normal_etag


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing.

    Attributes:
        objects: those directly under the prefix.
        folders: names of the common prefixes, without their slash.
        next_token: what asks for the next page; "" on the last.
    """

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]
    next_token: str


class NotAListing(ValueError):
    """The bytes are no ListObjectsV2 answer; says why."""


def parse_xml(data: bytes) -> ElementTree.Element | None:
    """The root element, or None for what is not XML or declares entities (which no store needs)."""
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        return None
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError):  # the latter two: an encoding that is not known
        return None


def local_name(element: ElementTree.Element) -> str:
    """The tag without its namespace."""
    return element.tag.rpartition("}")[2]


def text_of(element: ElementTree.Element, name: str) -> str:
    """The text of a child, "" where there is none; in any namespace."""
    return element.findtext(f"{{*}}{name}") or ""


def parse_page(body: bytes, prefix: str, *, deep: bool = False) -> ListPage:
    """Read one page of a listing of `prefix` ("" or ending in a slash).

    Args:
        deep: it was asked for without a delimiter: objects in folders below are objects too.

    Raises NotAListing.
    """
    page = parse_xml(body)
    if page is None or local_name(page) != "ListBucketResult":
        raise NotAListing("it is not a ListBucketResult")
    quoted = text_of(page, "EncodingType").lower() == "url"

    def name_of(element: ElementTree.Element, tag: str) -> str:
        text = text_of(element, tag)
        return unquote_plus(text) if quoted else text

    objects: list[ObjectInfo] = []
    folders: list[str] = []
    for element in page.iterfind("{*}Contents"):
        key = name_of(element, "Key")
        if not key.startswith(prefix):
            raise NotAListing(f"it names the key {key!r:.200}, which is not under the prefix")
        name = key[len(prefix) :]
        if deep and name.endswith("/") and text_of(element, "Size") == "0":
            continue  # what some tools make to stand for a folder
        if "/" in name and not deep:  # a store that does not know delimiters
            folders.append(name.partition("/")[0])
        elif name:
            objects.append(
                ObjectInfo(
                    key,
                    name,
                    _size(text_of(element, "Size"), key),
                    normal_etag(text_of(element, "ETag")),
                    _seconds(text_of(element, "LastModified")),
                )
            )
    for element in page.iterfind("{*}CommonPrefixes"):
        folder = name_of(element, "Prefix")
        if not folder.startswith(prefix):
            raise NotAListing(f"it names the folder {folder!r:.200}, which is not under the prefix")
        folders.append(folder[len(prefix) :].removesuffix("/"))
    token = text_of(page, "NextContinuationToken")
    truncated = text_of(page, "IsTruncated").lower() == "true"
    if truncated and not token:
        raise NotAListing("it says that there is more, but not how to ask for it")
    return ListPage(tuple(objects), tuple(dict.fromkeys(folders)), token if truncated else "")


def _size(text: str, key: str) -> int:
    # int() takes signs, blanks, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotAListing(f"it gives {key!r:.200} the size {text!r:.40}")
    return int(text)


def _seconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None
