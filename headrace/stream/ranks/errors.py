"""What can go wrong between ranks that load together."""

from headrace.errors import HeadraceError


class PeerLost(HeadraceError):
    """Another rank's process ended, or went silent, before the load was complete.

    Attributes:
        rank: its rank in the group.
    """

    def __init__(self, rank: int, cause: str) -> None:
        super().__init__(
            f"Rank {rank} of the distributed load was lost: {cause}.",
            remedy=f"See why rank {rank} ended (its log, the kernel's for out of memory), then load again on all ranks.",
        )
        self.rank, self.cause = rank, cause


class PeerFailed(HeadraceError):
    """Another rank could not go on, and said why.

    Attributes:
        rank: its rank in the group.
    """

    def __init__(self, rank: int, cause: str) -> None:
        super().__init__(f"Rank {rank} of the distributed load could not go on: {cause}")
        self.rank, self.cause = rank, cause


class RanksDisagree(HeadraceError):
    """The ranks of one machine do not load the same objects."""

    def __init__(self, rank: int, other: int, difference: str) -> None:
        super().__init__(
            f"Ranks {rank} and {other} cannot load together: {difference}.",
            remedy="Give every rank the same files in the same order; if they were replaced meanwhile, load again.",
        )
