"""A torch.distributed group, as far as ranks need one to find each other."""

import sys
from typing import Any, Protocol

from headrace.errors import HeadraceError


class RanksCannotMeet(HeadraceError):
    """The group broke before the ranks had found each other."""


class Group(Protocol):
    """Ranks that load together.

    Attributes:
        rank: this process's number in it.
        size: how many there are.
    """

    rank: int
    size: int

    def gather(self, data: bytes) -> list[bytes]:
        """What every rank gave, by rank. Every rank has to call it. Raises RanksCannotMeet."""


class TorchGroup:
    """A group of torch.distributed; with NCCL every rank has to have set its CUDA device."""

    def __init__(self, group: Any = None) -> None:
        """Args: group: a ProcessGroup, None for the default one."""
        import torch.distributed as distributed

        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)

    def gather(self, data: bytes) -> list[bytes]:
        """See Group.gather."""
        import torch.distributed as distributed

        result: list[Any] = [None] * self.size
        try:
            distributed.all_gather_object(result, data, group=self._group)
        except RuntimeError as error:
            raise RanksCannotMeet(
                f"The ranks of the distributed load could not meet: {error}",
                remedy="Probably one of them has ended: see its log, then load again on all ranks.",
            ) from error
        return result


def torch_group(group: Any = None) -> TorchGroup | None:
    """The group, None where torch.distributed is not initialised (then it need not be imported) or has one rank."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    found = TorchGroup(group)
    return found if found.size > 1 and found.rank >= 0 else None
