"""How far a transfer is, as data: what a progress bar, /ready and the metrics read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a transfer.

    Attributes:
        bytes_done, bytes_total: bytes of the plan; those of reads under way count.
        seconds: from its start to now, or to its end.
        retries: reads that failed and were tried again.
        hedges: slow reads that a second connection was put to.
        hedged_bytes: what those second connections received, beyond the plan's bytes.
        requests: reads begun, first tries, retries and hedges alike.
        concurrency: connections that read at this moment.
        groups_done, groups_total: groups of the plan that are complete, and all.
    """

    bytes_done: int
    bytes_total: int
    seconds: float
    retries: int
    hedges: int
    hedged_bytes: int
    requests: int
    concurrency: int
    groups_done: int
    groups_total: int
