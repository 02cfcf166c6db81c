"""Where other weights are loaded to: beside the served ones where there is room for both, else over them."""

from collections.abc import Collection

from headrace.engine.change.served import Served
from headrace.engine.scheduling.kv_pool import PagePool
from headrace.ipc.messages import Occupation
from headrace.stream.arena import Arena
from headrace.stream.library.memory_room import NotEnoughMemory, check_room, memory_room

_NO_ROOM = "Free memory, and ask again."
_NO_ROOM_FOR_BOTH = (
    "Ask with in_place=true, which overwrites the served weights once nothing runs (a failure then starts the engine "
    "anew), or free memory: a smaller --max-total-tokens leaves more."
)


def arena_for(
    model: str, served: Served, occupied: Collection[Occupation], pool: PagePool, *, may_overwrite: bool
) -> Arena:
    """A second arena, the one that was given back, or the served one where there is no room for two.

    Args:
        model: what is to be loaded; it takes as many bytes as what is served.
        occupied: what is in memory.
        pool: of the served KV cache.

    Raises NotEnoughMemory where it would be the served one and that may not be overwritten.
    """
    size, to_come = served.arena_plan.size_bytes, _cache_to_come_bytes(served, occupied, pool)
    is_there = "weights" in occupied
    what = f"To load {model}{f' beside {served.model}' if is_there else ''}"
    if to_come:
        what += f" ({size:,} bytes, and {to_come:,} that the KV cache may yet take)"
    try:
        check_room(size + to_come, what, memory_room(), _NO_ROOM_FOR_BOTH if is_there else _NO_ROOM)
    except NotEnoughMemory:
        if not may_overwrite or served.arena is None:
            raise
        return served.arena
    return Arena(size) if is_there or served.arena is None else served.arena


def _cache_to_come_bytes(served: Served, occupied: Collection[Occupation], pool: PagePool) -> int:
    """Of the KV cache on the CPU, what has never been touched."""
    if served.arena is None or "kv_cache" not in occupied:
        return 0
    untouched = pool.page_count - pool.used_count
    cache = served.cache
    return sum(tensor.nbytes for tensor in (*cache.keys, *cache.values)) // pool.page_count * untouched
