"""Where the bytes of one chunk land: in place where a piece is large and plain, else in scratch, from where each
piece is copied, cut or converted into its place once all of them are there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.stream.convert import convert
from headrace.stream.plan import Chunk, Placement, placed_bytes
from headrace.stream.transfer.memory import Memory

# Shorter ones cost less as a copy than as a receive of their own.
SMALL_BYTES = 32 << 10


class Span(msgspec.Struct, frozen=True, gc=False):
    """Adjacent bytes [start, end) of an object that go to one place unchanged, or one piece that is changed.

    Attributes:
        piece: its first piece, which says where it goes; all of it where it is to be changed.
        plain: unchanged.
    """

    start: int
    end: int
    piece: Placement
    plain: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent spans that are received in one piece: one span in place, or several in scratch."""

    start: int
    end: int
    spans: Sequence[Span]
    in_place: bool


def runs_of(chunk: Chunk) -> list[Run]:
    """The chunk cut into runs, in order."""
    runs: list[Run] = []
    staged: list[Span] = []

    def flush() -> None:
        if staged:
            runs.append(Run(staged[0].start, staged[-1].end, tuple(staged), in_place=False))
            staged.clear()

    for span in _spans_of(chunk):
        alone = len(chunk.pieces) == 1 or (span.start == chunk.start and span.end == chunk.end)
        if span.plain and (alone or span.end - span.start >= SMALL_BYTES):
            flush()
            runs.append(Run(span.start, span.end, (span,), in_place=True))
        else:
            staged.append(span)
    flush()
    return runs


def _spans_of(chunk: Chunk) -> list[Span]:
    spans: list[Span] = []
    first: Placement | None = None  # of a plain span that may go on
    start = follows = chunk.start  # `follows`: the destination that would prolong it
    for piece in chunk.pieces:
        if piece.columns is None and piece.source_dtype == piece.dtype:
            if first is not None and piece.destination == follows and piece.buffer == first.buffer:
                follows += piece.end - piece.start
                continue
            if first is not None:
                spans.append(Span(start, piece.start, first, True))
            first, start = piece, piece.start
            follows = piece.destination + piece.end - piece.start
        else:
            if first is not None:
                spans.append(Span(start, piece.start, first, True))
                first = None
            spans.append(Span(piece.start, piece.end, piece, False))
    if first is not None:
        spans.append(Span(start, chunk.end, first, True))
    return spans


def staged_bytes(runs: Sequence[Run]) -> int:
    """How much scratch they need."""
    return sum(run.end - run.start for run in runs if not run.in_place)


def views_of(runs: Sequence[Run], memory: Memory, scratch: memoryview) -> list[memoryview]:
    """Where each run is received; `scratch` has the bytes that `staged_bytes` says."""
    views: list[memoryview] = []
    at = 0
    for run in runs:
        size = run.end - run.start
        if run.in_place:
            (span,) = run.spans
            views.append(memory.place(span.piece.buffer, span.piece.destination, size))
        else:
            views.append(scratch[at : at + size])
            at += size
    return views


def settle(runs: Sequence[Run], views: Sequence[memoryview], memory: Memory) -> None:
    """Bring what lies in scratch to its place; `views` are full."""
    for run, view in zip(runs, views, strict=True):
        if run.in_place:
            continue
        for span in run.spans:
            piece, source = span.piece, view[span.start - run.start : span.end - run.start]
            if span.plain:
                memory.put(piece.buffer, piece.destination, source)
            else:
                _change(piece, source, memory.place(piece.buffer, piece.destination, placed_bytes(piece)))


def _change(piece: Placement, source: memoryview, destination: memoryview) -> None:
    """Cut the columns out, convert the elements, or both."""
    if piece.columns is None:
        convert(source, piece.source_dtype, destination, piece.dtype)
        return
    import numpy as np

    columns = piece.columns
    rows: Any = np.frombuffer(source, np.uint8).reshape(-1, columns.row_bytes)
    kept: Any = rows[:, columns.first : columns.last]
    if piece.source_dtype == piece.dtype:
        into: Any = np.frombuffer(destination, np.uint8)
        into.reshape(-1, columns.last - columns.first)[...] = kept
    else:
        whole: Any = np.ascontiguousarray(kept).reshape(-1)
        convert(memoryview(whole), piece.source_dtype, destination, piece.dtype)
