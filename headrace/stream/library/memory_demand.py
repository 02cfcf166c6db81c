"""What a load of tensors will take of this process's memory: its limit, and whether there is room for it."""

from headrace.stream.library.memory_limit import limit_bytes
from headrace.stream.library.memory_room import WORKING_BYTES, check_room, memory_room
from headrace.stream.select import Selection
from headrace.stream.variables import MEMORY_LIMIT, check_least

# Run:ai's default: what may wait for a consumer that lags.
DEFAULT_MEMORY_LIMIT = 40_000_000_000
_ROOM_REMEDY = (
    "Ask for less (names=..., slices=...) or take a machine with more memory. Who drops tensors as they come sets "
    "memory_limit: then only that much is needed at once."
)


def checked_limit(
    selection: Selection, given: int | None, from_variable: int | None, device: str, keeps_all: bool
) -> int | None:
    """The limit in bytes, None where none is needed.

    Args:
        given, from_variable: the caller's limit, and the variable's; None is neither.
        keeps_all: all tensors will be held at once, whatever the limit.

    Raises:
        BadSetting: a limit that is none.
        MemoryLimitTooSmall: a tensor exceeds it.
        NotEnoughMemory: the machine has not the memory.
    """
    origin = "memory_limit" if given is not None else MEMORY_LIMIT
    wanted = check_least(given, -1, origin)
    wanted = from_variable if wanted is None else wanted
    room = memory_room()
    total = selection.size_bytes
    if wanted is None:
        largest = max((tensor.size_bytes for tensor in selection.tensors), default=0)
        spare = (room.size_bytes - WORKING_BYTES) // 2
        # What goes on to another device only passes through: that it takes no more than it has to is ours to see to.
        limit: int | None = max(largest, min(DEFAULT_MEMORY_LIMIT, spare if device != "cpu" else total))
    else:
        limit = limit_bytes(wanted, selection, origin)
    # On another device, and where the caller says how much may wait, tensors do not pile up here.
    passing = device != "cpu" or (wanted is not None and not keeps_all)
    needed = total if limit is None or not passing else min(limit, total)
    check_room(needed, f"{len(selection.tensors):,} tensors", room, _ROOM_REMEDY)
    return limit if limit is not None and limit < total else None  # what holds all needs no gate
