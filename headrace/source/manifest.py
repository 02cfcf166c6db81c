"""The manifest beside the weights: each object's size and a checksum of each of its blocks.

It is small, so it is fetched with the metadata; what arrives of the weights is proved against it block by block.
The checksums combine from parts, so that reads need not follow the blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import HeadraceError
from headrace.source.files import MANIFEST_NAME

BLOCK_BYTES = 1 << 20
ALGORITHM = "crc64nvme"
_SUM_BYTES = 8
_FORMAT = "headrace-manifest"
_VERSION = 1
_NEW_ONE = (
    "`headrace push --manifest` writes a new one; without one, or with "
    """--model-loader-extra-config '{"verify": "off"}' (verify="off" in the library), nothing is verified."""
)


class BadManifest(HeadraceError):
    """The manifest cannot be read, or is not the one of these weights."""


@dataclass(frozen=True, slots=True)
class ObjectSums:
    """What a manifest knows of one object.

    Attributes:
        sums: CRC-64/NVME of each block, in order; the last block may be shorter.
    """

    size_bytes: int
    block_bytes: int
    sums: tuple[int, ...]


class _Object(msgspec.Struct):
    """One object as JSON has it.

    Attributes:
        sums: 16 hexadecimal digits for each block, one after another.
    """

    size_bytes: int
    sums: str


class _Manifest(msgspec.Struct, kw_only=True):
    """The document. `format` and `version` are read before the rest is."""

    format: str
    version: int
    algorithm: str = ALGORITHM
    block_bytes: int
    objects: dict[str, _Object]


class _Kind(msgspec.Struct):
    format: str
    version: int


def block_count(size_bytes: int, block_bytes: int) -> int:
    """Blocks of an object; an empty one has none."""
    return -(-size_bytes // block_bytes)


def encode_manifest(objects: Mapping[str, ObjectSums]) -> bytes:
    """The manifest of objects whose blocks are of BLOCK_BYTES, by name."""
    assert all(entry.block_bytes == BLOCK_BYTES for entry in objects.values())
    document = _Manifest(
        format=_FORMAT,
        version=_VERSION,
        block_bytes=BLOCK_BYTES,
        objects={
            name: _Object(entry.size_bytes, b"".join(value.to_bytes(8, "big") for value in entry.sums).hex())
            for name, entry in sorted(objects.items())
        },
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def parse_manifest(data: bytes, where: str) -> dict[str, ObjectSums]:
    """What a manifest knows, by name. `where` names it for errors. Raises BadManifest."""
    try:
        kind = msgspec.json.decode(data, type=_Kind)
        if kind.format != _FORMAT:
            raise BadManifest(f"{where} is not a manifest of Headrace.", remedy=_NEW_ONE)
        if kind.version != _VERSION:
            raise BadManifest(
                f"{where} is of version {kind.version}; this Headrace knows version {_VERSION}.",
                remedy=_NEW_ONE,
            )
        document = msgspec.json.decode(data, type=_Manifest)
        if document.algorithm != ALGORITHM:
            raise BadManifest(
                f"{where} holds checksums of the kind {document.algorithm:.40}; this Headrace knows {ALGORITHM}.",
                remedy=_NEW_ONE,
            )
        if document.block_bytes < 1:
            raise ValueError(f"block_bytes is {document.block_bytes}")
        return {
            name: _object_sums(name, entry, document.block_bytes) for name, entry in document.objects.items()
        }
    except (
        ValueError,
        msgspec.MsgspecError,
    ) as error:  # ValueError: digits that are none, bytes that are no text
        raise BadManifest(f"{where} cannot be read: {error}.", remedy=_NEW_ONE) from None


def _object_sums(name: str, entry: _Object, block_bytes: int) -> ObjectSums:
    data = bytes.fromhex(entry.sums)
    if entry.size_bytes < 0 or len(data) != _SUM_BYTES * block_count(entry.size_bytes, block_bytes):
        raise ValueError(
            f"{name:.200} has {entry.size_bytes:,} bytes and {len(entry.sums):,} digits of checksums"
        )
    sums = (int.from_bytes(data[at : at + _SUM_BYTES], "big") for at in range(0, len(data), _SUM_BYTES))
    return ObjectSums(entry.size_bytes, block_bytes, tuple(sums))


def sums_of(
    manifest: Mapping[str, ObjectSums], objects: Sequence[tuple[str, int]], where: str
) -> list[ObjectSums]:
    """The entries of these objects (name, listed size). Raises BadManifest where it was made for others."""
    for name, size_bytes in objects:
        entry = manifest.get(name)
        if entry is None:
            raise BadManifest(f"{where}/{MANIFEST_NAME} is stale: it does not know {name}.", remedy=_NEW_ONE)
        if entry.size_bytes != size_bytes:
            raise BadManifest(
                f"{where}/{MANIFEST_NAME} is stale: it says {entry.size_bytes:,} bytes of {name}, "
                f"the listing {size_bytes:,}.",
                remedy=_NEW_ONE,
            )
    return [manifest[name] for name, _ in objects]
