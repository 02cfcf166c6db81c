"""The quick way through a header's JSON. What is not plain is left to the careful way, which has the words for it.

A header of 10^5 tensors takes a second with dictionaries and lists, most of it the garbage collector's, that looks at
them again and again; the structs here it never sees.
"""

from itertools import chain
from typing import Any

import msgspec

_MAX_SIZE = (1 << 63) - 1
_MOST_DIMENSIONS = 32


class Entry(msgspec.Struct, gc=False):
    """What a name stands for; all three are there. (They may be absent, since "__metadata__" is decoded as one too.)

    The numbers are untyped: where int is asked for, 4.0 would do.
    """

    dtype: str | None = None
    shape: tuple[Any, ...] | None = None
    data_offsets: tuple[Any, Any] | None = None


class _Metadata(msgspec.Struct):
    metadata: dict[str, str] | None = msgspec.field(name="__metadata__", default=None)


_ENTRIES = msgspec.json.Decoder(dict[str, Entry])
_METADATA = msgspec.json.Decoder(_Metadata)


def plain_entries(header: bytes) -> dict[str, Entry] | None:
    """The entries of a header in its order, without "__metadata__"; None where it needs a careful look.

    What comes is valid JSON in which no name stands twice, and no other key or value than the format's; shapes and
    offsets are whole numbers of at most 63 bits, and shapes have few dimensions.
    """
    if b"\\" in header:
        return None
    try:
        text = header.decode()
        entries = _ENTRIES.decode(text)
        metadata = _METADATA.decode(text).metadata
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    entries.pop("__metadata__", None)
    shapes = [entry.shape for entry in entries.values() if entry.shape is not None]
    offsets = [entry.data_offsets for entry in entries.values() if entry.data_offsets is not None]
    if len(shapes) != len(entries) or len(offsets) != len(entries):
        return None
    if any(entry.dtype is None for entry in entries.values()):
        return None
    # Decoding keeps the last of two equal names. But no string holds a quote here (there are no backslashes), so the
    # quotes count all names and values: they are as few as these only if nothing stands twice and nothing beside.
    strings = 5 * len(entries) + (1 + 2 * len(metadata) if metadata is not None else 0)
    if header.count(b'"') != 2 * strings or not _are_sizes(shapes) or not _are_sizes(offsets):
        return None
    return entries


def _are_sizes(rows: list[tuple[Any, ...]]) -> bool:
    """Whether they hold few numbers each, whole ones from 0 to 2^63 - 1; True and 4.0 are none."""
    kinds = set(map(type, chain.from_iterable(rows)))
    if not kinds:
        return True
    return (
        kinds == {int}
        and max(map(len, rows)) <= _MOST_DIMENSIONS
        and min(chain.from_iterable(rows)) >= 0
        and max(chain.from_iterable(rows)) <= _MAX_SIZE
    )
