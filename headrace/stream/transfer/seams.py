"""What a transfer asks of others while it runs: memory, leave to start, and proof of what arrived."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.stream.plan import Chunk

# Gives the writable bytes of a buffer of the plan. Called once a buffer, by the worker that is about to read
# its first byte; the transfer lets go of the view when the buffer's last byte is in place.
Buffers = Callable[[int], memoryview]


class Gate(Protocol):
    """Says when there is room for the next chunk."""

    def may_start(self, chunk: Chunk) -> bool:
        """Whether the plan's next chunk may be read now; True counts as started, it is not asked again for it.

        Called under the transfer's lock: it must be quick and must not call the transfer. A large chunk may
        come in parts, one after another. After a False, `Transfer.wake` makes the transfer ask again.
        """


class Verifier(Protocol):
    """Proves chunks."""

    def received(self, shard: int, start: int, views: Sequence[memoryview]) -> None:
        """All bytes of a chunk are in `views`, one after another, as they came from byte `start` of a shard.

        Called by workers, several at once, before conversion and before the bytes count.

        Raises:
            TransientError: the chunk is worth another read, from its first byte on.
            StoreError: final.
        """


class Share(Protocol):
    """Divides a plan among several transfers (of several processes) that all have the whole of it."""

    def reads(self, chunk: Chunk) -> bool | None:
        """Whether this transfer reads the plan's next chunk; False where another does, None for "not yet".

        Called under the transfer's lock, in the plan's order: it must be quick and must not call the transfer.
        Where a chunk is read in parts, it is asked about each, and says the same. After a None, `Transfer.wake`
        makes the transfer ask again. What is answered False counts for nothing here: neither its bytes nor the
        groups that it completes.
        """
