"""Verification as bytes arrive: each chunk's checksums are computed by the worker that received it.

A block is proved when the last of its bytes is there. Where that fails the chunk that brought them is read once more,
as a bit may have flipped on the way; where it fails again the load ends. (What an earlier chunk brought of the block may
be in use by then, so that it is not read again.)
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.store.errors import Corrupt, TransientError
from headrace.stream.checkpoint.header import Shard
from headrace.stream.verify.blocks import BlockBook, Expected, Mismatch, sum_up

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
        if not self.bytes_received:
            return "Nothing was read, so nothing was verified."
        reasons = "; ".join(self.why_not)
        if not self.told_by:
            return f"Not verifiable: {reasons}."
        share = self.bytes_verified / self.bytes_received
        # 99.97 % is not all.
        percent = "100" if self.bytes_verified == self.bytes_received else f"{min(share * 100, 99.9):.1f}"
        rest = f"; not verifiable: {reasons}" if reasons else ""
        return f"Verified {percent} % of the {self.bytes_received:,} bytes read, by {', '.join(self.told_by)}{rest}."


class BlockVerifier:
    """Proves what a transfer receives; a `Verifier` of one load. Thread-safe.

    A shard's header, which was read before, is taken in with its first chunk.
    """

    def __init__(
        self,
        uris: Sequence[str],
        shards: Sequence[Shard],
        expect: Callable[[int], Expected | str],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        uris: the shards' names, for messages.
        expect: what a shard's checksums should be, or why nobody knows; asked in the worker that brings the
            shard's first chunk, which may wait for it.
        close: ends what `expect` waits for.
        """
        self._shards, self._expect, self._close = shards, expect, close
        self._uris = uris
        self._opening = [threading.Lock() for _ in shards]
        self._books: dict[int, BlockBook | str] = {}
        self._suspects: set[tuple[int, int]] = set()
        self._received = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """End what is still asked for. The summary stays."""
        self._close()

    def ask(self) -> None:
        """Wait until all checksums are known, before anything is received.

        Raises:
            NotVerifiable: an object has none, and it must.
        """
        for number in range(len(self._shards)):
            self._expect(number)

    def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
        """See Verifier.received.

        Raises:
            TransientError: a block is wrong for the first time.
            Corrupt: it is wrong again.
        """
        book = self._book(shard)
        wrong = self._add(book, start, views)
        if wrong is None:
            return
        assert isinstance(book, BlockBook)
        with self._lock:
            again = (shard, wrong.block) in self._suspects
            self._suspects.add((shard, wrong.block))
        uri, cause = self._uris[shard], _cause(book.expected, wrong)
        if again:
            raise Corrupt(uri, f"{cause} What arrived of them last was read twice.", remedy=_AGAIN)
        _logger.warning("%s: %s They are read once more.", uri, cause)
        raise TransientError(uri, cause)

    def _book(self, shard: int) -> BlockBook | str:
        with self._opening[shard]:
            book = self._books.get(shard)
            if book is None:
                expected = self._expect(shard)
                book = BlockBook(expected) if isinstance(expected, Expected) else expected
                header = self._shards[shard].header
                wrong = self._add(
                    book, 0, [memoryview(len(header).to_bytes(8, "little")), memoryview(header)]
                )
                if (
                    wrong is not None
                ):  # read again it might name other tensors: the whole load would begin anew
                    assert isinstance(book, BlockBook)
                    raise Corrupt(self._uris[shard], _cause(book.expected, wrong), remedy=_AGAIN)
                self._books[shard] = book
            return book

    def _add(self, book: BlockBook | str, start: int, views: Sequence[memoryview]) -> Mismatch | None:
        parts = sum_up(start, views, book.expected) if isinstance(book, BlockBook) else []
        with self._lock:
            wrong = book.add(parts) if isinstance(book, BlockBook) else None
            if wrong is None:
                self._received += sum(map(len, views))
            return wrong

    def summary(self) -> Verified:
        """How much is proved so far."""
        with self._lock:
            books = sorted(self._books.items())
            proved = [book for _, book in books if isinstance(book, BlockBook)]
            reasons: dict[str, list[str]] = {}
            for number, book in books:
                reason = book if isinstance(book, str) else _unproved(book)
                if reason:
                    reasons.setdefault(reason, []).append(self._shards[number].item.name)
            return Verified(
                self._received,
                sum(book.bytes_verified for book in proved),
                tuple(dict.fromkeys(book.expected.told_by for book in proved if book.bytes_verified)),
                tuple(
                    f"{_shown(names)}{reason}" if len(names) < len(books) else reason
                    for reason, names in reasons.items()
                ),
            )


def _unproved(book: BlockBook) -> str:
    """Why nothing of an object is proved though there is a checksum; empty where something is."""
    if book.bytes_verified or not book.expected.size_bytes:
        return ""
    return "none of what its checksums are of was read whole"


def _shown(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: "


def _cause(expected: Expected, wrong: Mismatch) -> str:
    start, end = expected.bounds(wrong.block)
    return (
        f"Bytes {start}-{end - 1} are not what they should be: their {expected.crc.name} is "
        f"{expected.crc.text(wrong.found)}, but {expected.told_by} says "
        f"{expected.crc.text(expected.sums[wrong.block])}."
    )
