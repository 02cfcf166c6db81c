"""The beginning of a load that ranks may share: where there is anybody to share it with, they meet."""

from collections.abc import Sequence
from typing import Unpack

from headrace.source.objects import ObjectInfo
from headrace.store.base import Store
from headrace.stream.plan import DEFAULT_CHUNK_BYTES, ReadPlan
from headrace.stream.ranks.declaration import declare
from headrace.stream.ranks.distributed import SILENCE_TIMEOUT_S, DistributedTransfer, ReadOptions
from headrace.stream.ranks.group import Group, torch_group
from headrace.stream.ranks.meeting import meet
from headrace.stream.ranks.wants import uncut
from headrace.stream.transfer.seams import Buffers, Gate
from headrace.stream.transfer.transfer import Transfer

DEFAULT_RING_BYTES = 256 << 20


def start_distributed(
    plan: ReadPlan,
    items: Sequence[ObjectInfo],
    store: Store,
    memory: memoryview | Buffers,
    *,
    group: Group | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    ring_bytes: int = DEFAULT_RING_BYTES,
    silence_timeout_s: float = SILENCE_TIMEOUT_S,
    gate: Gate | None = None,
    rate_limit_mb_s: float | None = None,
    **options: Unpack[ReadOptions],
) -> "Transfer | DistributedTransfer":
    """Start a load together with the other ranks of this machine; every rank of the group has to call it.

    A plain Transfer where there is nobody to load with: torch.distributed is not initialised or has one rank,
    or no other rank shares this one's machine and network namespace (a warning says so where the machine has
    more of them).

    Args:
        plan: what this rank wants; that may be nothing, or parts of what others want.
        items: the same objects in the same order on every rank.
        group: None means the default group of torch.distributed.
        chunk_bytes: the largest read.
        ring_bytes: memory for the whole machine in which chunks wait to be copied.
        silence_timeout_s: how long another rank's process may give no sign of life.
        rate_limit_mb_s: for the machine's ranks together.
        options: as for Transfer; `readers` are taken over, whatever happens.

    Raises:
        RanksDisagree: the ranks of this machine were given different objects.
        PeerFailed: another rank of it could not begin.
        RanksCannotMeet: the group broke before the ranks had met.
        TooManyThreads: the system has none for it.
    """
    found = group if group is not None else torch_group()
    machine = None
    if found is not None:
        try:
            machine = meet(found, declare(uncut(plan), items, store, chunk_bytes), ring_bytes)
        except BaseException:
            for reader in options.get("readers", ()):
                reader.close()
            raise
    if machine is None:
        return Transfer(plan, items, store, memory, gate=gate, rate_limit_mb_s=rate_limit_mb_s, **options)
    if rate_limit_mb_s is not None:
        rate_limit_mb_s /= len(machine.ranks)
    return DistributedTransfer(
        machine,
        plan,
        items,
        store,
        memory,
        silence_timeout_s=silence_timeout_s,
        gate=gate,
        rate_limit_mb_s=rate_limit_mb_s,
        **options,
    )
