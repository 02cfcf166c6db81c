"""The bookkeeping of verification: which parts of which blocks have arrived, and what they add up to. Pure.

Parts come in any order and any split. A block is proved when the last of its bytes is there; blocks that are never
whole prove nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.store.crc import Crc


@dataclass(frozen=True, slots=True)
class Expected:
    """What an object's checksums should be.

    Attributes:
        crc: of which kind they are.
        size_bytes: the object's.
        block_bytes: each block's, but the last one may be shorter; 0 for a single one of the whole object.
        sums: one a block.
        told_by: who says so, for a message.
    """

    crc: Crc
    size_bytes: int
    block_bytes: int
    sums: Sequence[int]
    told_by: str

    def bounds(self, block: int) -> tuple[int, int]:
        """The block's first byte and the one after its last."""
        if self.block_bytes == 0:
            return 0, self.size_bytes
        start = block * self.block_bytes
        return start, min(start + self.block_bytes, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Part:
    """A checksum of bytes [start, end) of an object, all in one block."""

    block: int
    start: int
    end: int
    value: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A block whose checksum is not what it should be."""

    block: int
    found: int


def cut(
    start: int, views: Sequence[memoryview], expected: Expected
) -> Iterator[tuple[int, int, list[memoryview]]]:
    """Bytes that begin at `start`, cut at the blocks' bounds: block, first byte, views."""
    block, at = (start // expected.block_bytes if expected.block_bytes else 0), start
    pending: list[memoryview] = []
    begin = start
    for view in views:
        rest = view
        while len(rest):
            take = min(len(rest), expected.bounds(block)[1] - at)
            assert take > 0, "bytes beyond the object's end"
            pending.append(rest[:take])
            rest, at = rest[take:], at + take
            if at == expected.bounds(block)[1]:
                yield block, begin, pending
                pending, begin, block = [], at, block + 1
    if pending:
        yield block, begin, pending


def sum_up(start: int, views: Sequence[memoryview], expected: Expected) -> list[Part]:
    """The checksums of bytes that begin at `start`, one for each block that they touch."""
    return [
        Part(block, begin, begin + sum(map(len, pieces)), expected.crc.of(pieces))
        for block, begin, pieces in cut(start, views, expected)
    ]


@dataclass(slots=True)
class BlockBook:
    """What has arrived of one object.

    Attributes:
        bytes_verified: of blocks that are whole and right.
    """

    expected: Expected
    bytes_verified: int = 0
    _open: dict[int, list[Part]] = field(default_factory=dict)

    def add(self, parts: Sequence[Part]) -> Mismatch | None:
        """Take parts in that are there for the first time. The first block that they prove wrong, if there is one:
        then nothing was taken in.
        """
        whole: list[int] = []
        for part in parts:
            start, end = self.expected.bounds(part.block)
            known = self._open.get(part.block, ())
            if part.end - part.start + sum(other.end - other.start for other in known) < end - start:
                continue
            found = self._combined([*known, part])
            if found != self.expected.sums[part.block]:
                return Mismatch(part.block, found)
            whole.append(part.block)
        for part in parts:
            self._open.setdefault(part.block, []).append(part)
        for block in whole:
            del self._open[block]
            start, end = self.expected.bounds(block)
            self.bytes_verified += end - start
        return None

    def _combined(self, parts: list[Part]) -> int:
        ordered = sorted(parts, key=lambda part: part.start)
        value, at = 0, self.expected.bounds(ordered[0].block)[0]
        for part in ordered:
            assert part.start == at, "bytes that came twice"
            value = self.expected.crc.combine(value, part.value, part.end - part.start)
            at = part.end
        return value
