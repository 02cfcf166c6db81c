"""Reading what Google Cloud Storage lists: JSON from a server that may be anything, proved before it is used.

Format: https://cloud.google.com/storage/docs/json_api/v1/objects/list
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headrace.source.objects import ObjectInfo

# What is asked for: entries are ten times as long with all the rest.
LIST_FIELDS = "kind,items(name,size,generation,updated,crc32c),prefixes,nextPageToken"
_KIND = "storage#objects"


class _Item(msgspec.Struct):
    name: str
    size: str
    generation: str
    updated: str = ""
    crc32c: str = ""


class _Page(msgspec.Struct):
    kind: str
    items: list[_Item] = msgspec.field(default_factory=list)
    prefixes: list[str] = msgspec.field(default_factory=list)
    next_page_token: str = msgspec.field(default="", name="nextPageToken")


@dataclass(frozen=True, slots=True)
class GcsPage:
    """One page of a listing.

    Attributes:
        objects: those under the prefix; a version is a generation.
        folders: names of the common prefixes, without their slash.
        next_token: what asks for the next page; "" on the last.
        crcs: (key, generation) → CRC-32C as it is written, where one is kept.
    """

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]
    next_token: str
    crcs: Mapping[tuple[str, str], str]


class NotAGcsListing(ValueError):
    """The bytes are no list of objects; says why."""


def parse_gcs_page(body: bytes, prefix: str, *, deep: bool = False) -> GcsPage:
    """Read one page of a listing of `prefix` ("" or ending in a slash).

    Args:
        deep: it was asked for without a delimiter: objects in folders below are objects too.

    Raises NotAGcsListing.
    """
    try:
        page = msgspec.json.decode(body, type=_Page)
    except msgspec.MsgspecError as error:
        raise NotAGcsListing(f"it is no list of objects ({error})") from None
    if page.kind != _KIND:
        raise NotAGcsListing(f"it is of the kind {page.kind!r:.80}")
    objects: list[ObjectInfo] = []
    folders: list[str] = []
    crcs: dict[tuple[str, str], str] = {}
    for item in page.items:
        name = _below(item.name, prefix)
        size = _number(item.size, item.name, "size")
        if not name or (deep and size == 0 and name.endswith("/")):
            continue  # what some tools make to stand for a folder
        if "/" in name and not deep:  # a server that does not know delimiters
            folders.append(name.partition("/")[0])
            continue
        generation = str(_number(item.generation, item.name, "generation"))
        objects.append(ObjectInfo(item.name, name, size, generation, _seconds(item.updated)))
        if item.crc32c:
            crcs[item.name, generation] = item.crc32c
    folders += [_below(folder, prefix).removesuffix("/") for folder in page.prefixes]
    return GcsPage(tuple(objects), tuple(dict.fromkeys(folders)), page.next_page_token, crcs)


def _below(key: str, prefix: str) -> str:
    if not key.startswith(prefix):
        raise NotAGcsListing(f"it names {key!r:.200}, which is not under the prefix")
    return key[len(prefix) :]


def _number(text: str, key: str, what: str) -> int:
    # int() takes signs, blanks, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise NotAGcsListing(f"it gives {key!r:.200} the {what} {text!r:.40}")
    return int(text)


def _seconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None
