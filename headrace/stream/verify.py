"""Verification as bytes arrive: each chunk's checksums are computed by the worker that received it.

A block is proved when the last of its bytes is there. Where that fails the chunk is read once more, as a bit may have
flipped on the way; where it fails again the load ends.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.store.errors import Corrupt, TransientError
from headrace.stream.header import Shard
from headrace.stream.verify_blocks import BlockBook, Expected, Mismatch, sum_up

_logger = logging.getLogger(__name__)
_AGAIN = (
    "Start again; if it is always so, the object is damaged or was replaced by another one of the same size: upload "
    "it again, with `headrace push --manifest` where it has a manifest."
)


@dataclass(frozen=True, slots=True)
class Verified:
    """How much was proved.

    Attributes:
        bytes_received: of all objects, headers included.
        bytes_verified: of blocks that were read whole and are right.
        told_by: what they were compared with, each once; empty where nothing could be verified.
        why_not: what could not be compared and why; empty where all could.
    """

    bytes_received: int
    bytes_verified: int
    told_by: tuple[str, ...]
    why_not: tuple[str, ...]

    def describe(self) -> str:
        """One sentence for the log."""
        reasons = "; ".join(self.why_not)
        if not self.told_by:
            return f"Not verifiable: {reasons}."
        share = self.bytes_verified / self.bytes_received if self.bytes_received else 1.0
        # 99.97 % is not all.
        percent = "100" if self.bytes_verified == self.bytes_received else f"{min(share * 100, 99.9):.1f}"
        rest = f"; not verifiable: {reasons}" if reasons else ""
        return f"Verified {percent} % of the {self.bytes_received:,} bytes read, by {', '.join(self.told_by)}{rest}."


class BlockVerifier:
    """Proves what a transfer receives; a `Verifier` of one load. Thread-safe.

    The headers, which were read before, are taken in at once.
    """

    def __init__(
        self,
        where: str,
        shards: Sequence[Shard],
        expected: Sequence[Expected | None],
        why_not: Sequence[str] = (),
    ) -> None:
        """Args:
            where: the place of the shards, for messages.
            expected: what each shard's checksums should be, None where nobody knows.
            why_not: why some are None.

        Raises Corrupt where a header is not what it should be.
        """
        self._uris = [f"{where}/{shard.item.name}" for shard in shards]
        self._books = [BlockBook(entry) if entry is not None else None for entry in expected]
        self._why_not = tuple(why_not)
        self._suspects: set[tuple[int, int]] = set()
        self._received = 0
        self._lock = threading.Lock()
        for number, shard in enumerate(shards):
            length = len(shard.header).to_bytes(8, "little")
            wrong = self._take(number, 0, [memoryview(length), memoryview(shard.header)])
            if wrong is not None:  # read again it might name other tensors: the whole load would begin anew
                raise Corrupt(self._uris[number], self._cause(number, wrong), remedy=_AGAIN)

    def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
        """See Verifier.received.

        Raises:
            TransientError: a block is wrong for the first time.
            Corrupt: it is wrong again.
        """
        wrong = self._take(shard, start, views)
        if wrong is None:
            return
        with self._lock:
            again = (shard, wrong.block) in self._suspects
            self._suspects.add((shard, wrong.block))
        uri, cause = self._uris[shard], self._cause(shard, wrong)
        if again:
            raise Corrupt(uri, f"{cause} A second read gave no other result.", remedy=_AGAIN)
        _logger.warning("%s: %s They are read once more.", uri, cause)
        raise TransientError(uri, cause)

    def _take(self, shard: int, start: int, views: Sequence[memoryview]) -> Mismatch | None:
        """Count bytes, unless they prove a block wrong."""
        book = self._books[shard]
        parts = sum_up(start, views, book.expected) if book is not None else []
        with self._lock:
            wrong = book.add(parts) if book is not None else None
            if wrong is None:
                self._received += sum(map(len, views))
            return wrong

    def _cause(self, shard: int, wrong: Mismatch) -> str:
        book = self._books[shard]
        assert book is not None
        expected = book.expected
        start, end = expected.bounds(wrong.block)
        return (
            f"Bytes {start}-{end - 1} are not what they should be: their {expected.crc.name} is "
            f"{expected.crc.text(wrong.found)}, but {expected.told_by} says "
            f"{expected.crc.text(expected.sums[wrong.block])}."
        )

    def summary(self) -> Verified:
        """How much is proved so far."""
        with self._lock:
            books = [book for book in self._books if book is not None]
            return Verified(
                self._received,
                sum(book.bytes_verified for book in books),
                tuple(dict.fromkeys(book.expected.told_by for book in books)),
                self._why_not,
            )
