"""Reading what Azure's blob service lists: XML from a server that may be anything, proved before it is used.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs
"""

from dataclasses import dataclass
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from headrace.source.objects import ObjectInfo
from headrace.store.s3.listing import local_name, parse_xml, text_of
from headrace.store.versions import http_date_s, normal_etag


@dataclass(frozen=True, slots=True)
class BlobPage:
    """One page of a listing.

    Attributes:
        objects: those under the prefix.
        folders: names of the common prefixes, without their slash.
        next_token: what asks for the next page; "" on the last.
    """

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]
    next_token: str


class NotABlobListing(ValueError):
    """The bytes are no list of blobs; says why."""


def parse_blob_page(body: bytes, prefix: str, *, deep: bool = False) -> BlobPage:
    """Read one page of a listing of `prefix` ("" or ending in a slash).

    Args:
        deep: it was asked for without a delimiter: objects in folders below are objects too.

    Raises NotABlobListing.
    """
    page = parse_xml(body)
    if page is None or local_name(page) != "EnumerationResults":
        raise NotABlobListing("it is not an EnumerationResults")
    blobs = page.find("{*}Blobs")
    if blobs is None:
        raise NotABlobListing("it has no Blobs")
    objects: list[ObjectInfo] = []
    folders: list[str] = []
    for element in blobs.iterfind("{*}Blob"):
        key = _name_of(element)
        name = _below(key, prefix)
        facts = element.find("{*}Properties")
        if facts is None:
            raise NotABlobListing(f"it gives {key!r:.200} no properties")
        is_directory = _is_directory(element, facts)
        size = _size(text_of(facts, "Content-Length"), key)
        if not name or is_directory or (deep and size == 0 and name.endswith("/")):
            continue
        if "/" in name and not deep:  # a server that does not know delimiters
            folders.append(name.partition("/")[0])
            continue
        version = normal_etag(text_of(facts, "Etag"))
        objects.append(ObjectInfo(key, name, size, version, http_date_s(text_of(facts, "Last-Modified"))))
    folders += [
        _below(_name_of(element), prefix).removesuffix("/") for element in blobs.iterfind("{*}BlobPrefix")
    ]
    return BlobPage(tuple(objects), tuple(dict.fromkeys(folders)), text_of(page, "NextMarker"))


def _is_directory(element: Element, facts: Element) -> bool:
    """A hierarchical namespace lists its directories among the blobs; Hadoop's tools mark empty blobs as such."""
    metadata = element.find("{*}Metadata")
    marked = metadata is not None and any(
        local_name(entry).lower() == "hdi_isfolder" and (entry.text or "").lower() == "true"
        for entry in metadata
    )
    return marked or text_of(facts, "ResourceType").lower() == "directory"


def _name_of(element: Element) -> str:
    """A name; one that XML cannot hold is percent-encoded, and says so."""
    name = element.find("{*}Name")
    text = (name.text or "") if name is not None else ""
    return unquote(text) if name is not None and name.get("Encoded", "").lower() == "true" else text


def _below(key: str, prefix: str) -> str:
    if not key.startswith(prefix):
        raise NotABlobListing(f"it names {key!r:.200}, which is not under the prefix")
    return key[len(prefix) :]


def _size(text: str, key: str) -> int:
    # int() takes signs, blanks, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotABlobListing(f"it gives {key!r:.200} the size {text!r:.40}")
    return int(text)
