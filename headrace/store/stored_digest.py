"""The digest that a store keeps of a whole object: what `headrace push` has noted, or what the hub names files by."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from headrace.source.objects import ObjectInfo
from headrace.store.base import Reader

# The name of an object's metadata entry with the SHA-256 of its file, in hexadecimal.
CHECKSUM_KEY = "headrace-sha256"
DigestKind = Literal["SHA-256", "git object id"]


@dataclass(frozen=True, slots=True)
class StoredDigest:
    """What the bytes of a whole object add up to.

    Attributes:
        value: in hexadecimal, lower case.
        told_by: who says so, for a message.
    """

    kind: DigestKind
    value: str
    told_by: str


@runtime_checkable
class KeepsDigests(Protocol):
    """A reader of a store that may keep digests."""

    def stored_digest(self, item: ObjectInfo) -> StoredDigest | None:
        """The digest of this version of the object, if one is kept. Raises as Reader.read_into."""


def digest_of(reader: Reader, item: ObjectInfo) -> StoredDigest | None:
    """The digest that the store keeps of the whole object, if it does. Raises as Reader.read_into."""
    return reader.stored_digest(item) if isinstance(reader, KeepsDigests) else None


def noted_digest(value: str) -> StoredDigest | None:
    """What an upload has noted in the object's metadata; None for what is no digest."""
    value = value.strip().lower()
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        return None
    return StoredDigest("SHA-256", value, "the note of its upload")


def digest_of_file(path: Path, kind: DigestKind) -> str:
    """The file's digest in hexadecimal. Raises OSError.

    git's: the SHA-1 of "blob", the size and a zero byte before the content
    (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects).
    """
    with path.open("rb") as file:
        if kind == "SHA-256":
            return hashlib.file_digest(file, "sha256").hexdigest()
        size_bytes = path.stat().st_size
        start = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)

        def begun() -> "hashlib._Hash":
            return start

        return hashlib.file_digest(file, begun).hexdigest()
