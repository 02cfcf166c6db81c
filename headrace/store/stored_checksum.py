"""The checksum that a store keeps of an object, if it keeps one that can be combined from parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader
from headrace.store.crc import CRCS, Crc


@dataclass(frozen=True, slots=True)
class StoredChecksum:
    """A CRC of a whole object."""

    crc: Crc
    value: int


@runtime_checkable
class KeepsChecksums(Protocol):
    """A reader of a store that may keep checksums."""

    def stored_checksum(self, item: ObjectInfo) -> StoredChecksum | str:
        """The checksum of this version of the object, or why there is none. Raises as Reader.read_into."""


def checksum_of(reader: Reader, item: ObjectInfo) -> StoredChecksum | str:
    """The checksum that the store keeps of the whole object, or why there is none to compare with.

    Raises as Reader.read_into.
    """
    if isinstance(reader, KeepsChecksums):
        return reader.stored_checksum(item)
    return "this kind of store keeps no checksums"


def checksum_in(headers: Mapping[str, str]) -> StoredChecksum | str:
    """The checksum in a response to HEAD with `x-amz-checksum-mode: ENABLED` (names in lower case).

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html: a full-object checksum is
    of all bytes; a composite one (`-N` at its end) is of the N parts' checksums, with bounds that nobody tells.
    """
    composite = headers.get("x-amz-checksum-type", "").upper() == "COMPOSITE"
    for name, crc in CRCS.items():
        text = headers.get(f"x-amz-checksum-{name}", "")
        value = crc.decode(text)
        if value is not None and not composite:
            return StoredChecksum(crc, value)
        composite = composite or "-" in text
    if composite:
        return "the store keeps only a checksum of the parts' checksums"
    return "the store keeps no CRC of the whole object"
