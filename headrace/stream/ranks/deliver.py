"""Bytes of an object, from memory that is lent for a moment, to where a rank wants them."""

from typing import Any

from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.convert import convert
from headrace.stream.plan import Placement, part, placed_bytes, unit_bytes

_SMALL_BYTES = 32 << 10


def deliver(lent: memoryview, at: int, placement: Placement, memory: memoryview) -> int:
    """Place what `lent`, an object's bytes from `at` on, holds of a placement; returns how many bytes of the object.

    Both ends may lie anywhere within a row, but between elements.

    Args:
        memory: the buffer that the placement's destination counts in.
    """
    start, end = max(at, placement.start), min(at + len(lent), placement.end)
    assert start < end
    if placement.columns is None:
        whole = start == placement.start and end == placement.end
        piece = placement if whole else part(placement, start, end)
        place = memory[piece.destination : piece.destination + placed_bytes(piece)]
        _put(lent[start - at : end - at], piece, place)
        return end - start
    if placement.columns.first == placement.columns.last:
        return end - start
    row = placement.columns.row_bytes
    first_whole = placement.start - (placement.start - start) // row * row
    last_whole = placement.start + (end - placement.start) // row * row
    if first_whole < last_whole:
        _put_rows(lent[first_whole - at : last_whole - at], part(placement, first_whole, last_whole), memory)
    if start < min(first_whole, end):
        _put_in_row(lent[start - at : min(first_whole, end) - at], start, placement, memory)
    if first_whole <= last_whole < end:
        _put_in_row(lent[last_whole - at : end - at], last_whole, placement, memory)
    return end - start


def parts_in(placement: Placement, start: int, end: int) -> Placement:
    """What bytes [start, end) of the object complete of a placement, in whole rows or elements.

    Of adjacent ranges, each unit belongs to the one that holds its last byte.
    """
    unit = unit_bytes(placement)
    first = max(start - placement.start, 0) // unit * unit
    last = (min(end, placement.end) - placement.start) // unit * unit
    return part(placement, placement.start + first, placement.start + max(last, first))


def _put_rows(rows: memoryview, piece: Placement, memory: memoryview) -> None:
    import numpy as np

    assert piece.columns is not None
    width = piece.columns.last - piece.columns.first
    source: Any = np.frombuffer(rows, np.uint8).reshape(-1, piece.columns.row_bytes)
    kept: Any = source[:, piece.columns.first : piece.columns.last]
    place = memory[piece.destination : piece.destination + placed_bytes(piece)]
    if piece.source_dtype == piece.dtype:
        np.copyto(np.frombuffer(place, np.uint8).reshape(-1, width), kept)
    else:
        packed: Any = np.ascontiguousarray(kept).reshape(-1)
        _put(memoryview(packed), piece, place)


def _put_in_row(lent: memoryview, at: int, placement: Placement, memory: memoryview) -> None:
    """A part of one row."""
    columns = placement.columns
    assert columns is not None
    row, begin = divmod(at - placement.start, columns.row_bytes)
    first, last = max(columns.first, begin), min(columns.last, begin + len(lent))
    if first >= last:
        return
    bits, source_bits = DTYPE_BITS[placement.dtype], DTYPE_BITS[placement.source_dtype]
    before = row * (columns.last - columns.first) + first - columns.first
    start = placement.destination + before * bits // source_bits
    place = memory[start : start + (last - first) * bits // source_bits]
    _put(lent[first - begin : last - begin], placement, place)


def _put(source: memoryview, piece: Placement, place: memoryview) -> None:
    if piece.source_dtype != piece.dtype:
        convert(source, piece.source_dtype, place, piece.dtype)
        return
    if len(source) < _SMALL_BYTES:
        place[:] = source
        return
    import numpy as np

    # Unlike a memoryview's own assignment numpy lets other threads run meanwhile.
    np.copyto(np.frombuffer(place, np.uint8), np.frombuffer(source, np.uint8))
