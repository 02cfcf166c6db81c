"""What a rank wants, as it tells the other ranks of its machine: through a file in memory, which may be large."""

import os
from collections.abc import Sequence

import msgspec

from headrace.source.objects import ObjectInfo
from headrace.store.base import Store
from headrace.stream.plan import Placement
from headrace.stream.ranks.wants import pack_wants

_LOCAL = "this machine's files"


class Object(msgspec.Struct, frozen=True):
    """One object that a rank loads from, as far as ranks must agree on it. `version` is "" where they need not."""

    name: str
    size_bytes: int
    version: str


class Declaration(msgspec.Struct, frozen=True):
    """What a rank wants.

    Attributes:
        place: identifies the store, "" where ranks need not agree on it.
        wants: see `pack_wants`.
        slot_bytes: size of a slot in its ring, and its largest chunk.
    """

    place: str
    objects: list[Object]
    wants: bytes
    slot_bytes: int


def declare(
    placements: Sequence[Placement], items: Sequence[ObjectInfo], store: Store, chunk_bytes: int
) -> Declaration:
    """What a rank wants of these objects."""
    # One file can have several paths and identities in the containers of one machine.
    shared = store.source.scheme != "file"
    return Declaration(
        place=store.identity if shared else "",
        objects=[Object(item.name, item.size_bytes, item.version if shared else "") for item in items],
        wants=pack_wants(placements),
        slot_bytes=chunk_bytes,
    )


def write_declaration(declaration: Declaration) -> int:
    """A new file in memory that holds it. Raises OSError."""
    descriptor = os.memfd_create("headrace-wants")
    try:
        rest = memoryview(msgspec.msgpack.encode(declaration))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_declaration(descriptor: int) -> Declaration:
    """What another rank has written."""
    data = bytearray()
    while part := os.pread(descriptor, 1 << 24, len(data)):
        data += part
    return msgspec.msgpack.decode(data, type=Declaration)


def difference(own: Declaration, other: Declaration) -> str:
    """What two ranks of one machine would have to agree on, "" where they do."""
    if own.place != other.place:
        return f"they read from different places, {own.place or _LOCAL} and {other.place or _LOCAL}"
    if len(own.objects) != len(other.objects):
        return f"they were given {len(own.objects)} and {len(other.objects)} objects"
    for mine, others in zip(own.objects, other.objects, strict=True):
        if mine.name != others.name:
            return f"one was given {mine.name} where the other was given {others.name}"
        if mine != others:
            return (
                f"they found different versions of {mine.name} "
                f"({mine.size_bytes:,} bytes {mine.version}, {others.size_bytes:,} bytes {others.version})"
            )
    return ""
