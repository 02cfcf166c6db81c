"""The memory plan: what weights and KV cache may take, decided from headers before a byte is loaded."""

import os
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.ipc.options import DEFAULT_MEM_FRACTION
from headrace.stream.cgroup import memory_limits_bytes
from headrace.stream.library.memory_room import Room

# A pool that cannot hold this many tokens serves nobody.
LEAST_TOKENS = 1024


class NotEnoughMemory(HeadraceError):
    """Weights and a useful KV cache do not fit the memory that they may take, or that there is."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where weights and KV cache will lie.

    Attributes:
        name: for a person.
        total_bytes: its memory (for a CPU: the machine's, or its cgroup's limit).
        room: what of it can be had at this moment, and what bounds that.
        working_bytes: what the process itself will take of the room, beside weights and KV cache.
    """

    name: str
    total_bytes: int
    room: Room
    working_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """What weights and KV cache can take now."""
        return max(0, self.room.size_bytes - self.working_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The sum. Bytes, but for `pool_tokens`.

    Attributes:
        device: where.
        fraction: --mem-fraction-static, or its default.
        weights_bytes: the model's parameters as they lie in memory.
        bytes_per_token: keys and values of one token in all layers.
        pool_tokens: size of the KV pool, a multiple of the page size.
        reduced: the share would have held a larger pool, the memory that there is now did not.
    """

    device: Device
    fraction: float
    weights_bytes: int
    bytes_per_token: int
    pool_tokens: int
    reduced: bool = False

    @property
    def kv_cache_bytes(self) -> int:
        """What the KV pool takes when every page of it has been used."""
        return self.pool_tokens * self.bytes_per_token

    def describe(self) -> str:
        """The sum as one line."""
        total = self.device.total_bytes
        why = ""
        if self.reduced:
            room = self.device.room
            why = f", made smaller since {room.bound} leaves {_size(room.size_bytes)} now"
        return (
            f"Memory on {self.device.name}: {self.fraction:g} of {_size(total)} = "
            f"{_size(share_bytes(total, self.fraction))}; weights {_size(self.weights_bytes)}, KV cache "
            f"{self.pool_tokens:,} tokens × {self.bytes_per_token / 1024:.1f} KiB = {_size(self.kv_cache_bytes)}{why}"
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be held.

    Attributes:
        weights_bytes, bytes_per_token: as in MemoryPlan.
        context_length: tokens that one request may take.
        page_size: tokens.
        max_running_requests: requests that are computed together.
        max_total_tokens: the pool that was asked for; None leaves it to the plan.
    """

    weights_bytes: int
    bytes_per_token: int
    context_length: int
    page_size: int
    max_running_requests: int
    max_total_tokens: int | None = None

    @property
    def least_tokens(self) -> int:
        """A smaller pool will not do: what was asked for, or what serves anybody."""
        if self.max_total_tokens is not None:
            return self.pages(self.max_total_tokens)
        return self.pages(min(LEAST_TOKENS, self.context_length))

    @property
    def most_tokens(self) -> int:
        """A larger pool is of no use: what was asked for, or all that the running requests can fill."""
        if self.max_total_tokens is not None:
            return self.least_tokens
        return self.pages(self.max_running_requests * self.context_length)

    @property
    def least_bytes(self) -> int:
        """Weights and the smallest pool that will do."""
        return self.weights_bytes + self.least_tokens * self.bytes_per_token

    def pages(self, tokens: int) -> int:
        """Tokens rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def tokens_within(self, size_bytes: int) -> int:
        """The largest pool that fits beside the weights, in whole pages; 0 where not even they fit."""
        return (
            max(0, size_bytes - self.weights_bytes) // self.bytes_per_token // self.page_size * self.page_size
        )


def plan_memory(device: Device, fraction: float | None, demand: Demand) -> MemoryPlan:
    """Size the KV pool: what the share leaves, but no more than all running requests can use.

    Where neither `fraction` (None is the default) nor a number of tokens was asked for, the pool is also no larger than
    what can be had now; what was asked for is given or refused.

    Raises:
        NotEnoughMemory: the pool that was asked for, or a useful one, does not fit the share, or not what can be had
            now; with the sum, and the value that works.
    """
    chosen = fraction is not None
    fraction = DEFAULT_MEM_FRACTION if fraction is None else fraction
    within_share = demand.tokens_within(share_bytes(device.total_bytes, fraction))
    within_room = demand.tokens_within(device.usable_bytes)
    if within_share < demand.least_tokens:
        raise _share_too_small(device, fraction, demand)
    pool = min(within_share, demand.most_tokens)
    reduced = pool > within_room
    if reduced and (chosen or demand.max_total_tokens is not None or within_room < demand.least_tokens):
        raise _more_than_there_is(device, demand, pool, within_room)
    return MemoryPlan(
        device, fraction, demand.weights_bytes, demand.bytes_per_token, min(pool, within_room), reduced
    )


def machine_memory_bytes() -> int:
    """The machine's memory, or the cgroup's limit where that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *memory_limits_bytes()])


def share_bytes(total_bytes: int, fraction: float) -> int:
    """The share of the memory that weights and KV cache may take, rounded down.

    Counted in millionths, not in floating point: what is advised as the smallest fraction must then work.
    """
    return total_bytes * round(fraction * 1_000_000) // 1_000_000


def _share_too_small(device: Device, fraction: float, demand: Demand) -> NotEnoughMemory:
    needed, total = demand.least_bytes, device.total_bytes
    smallest = -(-needed * 1000 // total) / 1000
    sums = (
        f"{_capital(device.name)} has {_size(total)} in total, the share is {_size(share_bytes(total, fraction))}; "
        f"{_parts(demand, demand.least_tokens)}."
    )
    if needed + device.working_bytes > total:
        remedy = f"No fraction works: take a device with {_size(needed + device.working_bytes)} or more, or a smaller model."
    elif needed > device.usable_bytes:
        remedy = _free_memory(device, needed)
    else:
        remedy = f"Raise --mem-fraction-static to {smallest:g} or more."
    if demand.max_total_tokens is not None and demand.tokens_within(share_bytes(total, fraction)):
        remedy += " Or lower --max-total-tokens."
    return NotEnoughMemory(
        f"Loaded weights leave no memory for the KV cache under --mem-fraction-static={fraction:g}. {sums}",
        remedy=remedy,
    )


def _more_than_there_is(device: Device, demand: Demand, pool: int, within_room: int) -> NotEnoughMemory:
    """Args: pool, within_room: tokens that would be taken, and that would fit."""
    if within_room < demand.least_tokens:
        pool = demand.least_tokens
    own = f", {_size(device.working_bytes)} of it for the process itself" if device.working_bytes else ""
    sums = (
        f"{_capital(device.name)} has {_size(device.total_bytes)} in total, and {device.room.bound} leaves "
        f"{_size(device.room.size_bytes)} now{own}; {_parts(demand, pool)}."
    )
    if demand.max_total_tokens is not None:
        remedy = f"Lower --max-total-tokens to {within_room} or less." if within_room else ""
    elif within_room >= demand.least_tokens:
        largest = _largest_fraction(device, demand, within_room)
        lower = f"Lower --mem-fraction-static to {largest:g} or less, or give" if largest else "Give"
        remedy = f"{lower} --max-total-tokens {within_room} or less."
    else:
        remedy = ""
    return NotEnoughMemory(
        f"Weights and KV cache would take more memory than there is. {sums}",
        remedy=remedy or _free_memory(device, demand.least_bytes),
    )


def _largest_fraction(device: Device, demand: Demand, within_room: int) -> float | None:
    """The largest share, in thousandths, whose pool fits what can be had and still serves somebody."""
    over = demand.weights_bytes + (within_room + demand.page_size) * demand.bytes_per_token
    largest = min(1000, (over - 1) * 1000 // device.total_bytes) / 1000
    share = share_bytes(device.total_bytes, largest)
    return largest if demand.tokens_within(share) >= demand.least_tokens else None


def _free_memory(device: Device, needed_bytes: int) -> str:
    needed = needed_bytes + device.working_bytes
    return (
        f"No fraction works now: {_size(needed)} are needed. End what else takes memory, give it more (a container: "
        "raise its limit), or take a smaller model."
    )


def _parts(demand: Demand, tokens: int) -> str:
    pool_bytes = tokens * demand.bytes_per_token
    return (
        f"weights take {_size(demand.weights_bytes)}, the KV cache {demand.bytes_per_token:,} bytes per token × "
        f"{tokens:,} tokens wanted = {_size(pool_bytes)}, together {_size(demand.weights_bytes + pool_bytes)}"
    )


def _capital(name: str) -> str:
    return f"{name[:1].upper()}{name[1:]}"


def _size(size_bytes: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes * 10 >= 1 << power:
            return f"{size_bytes / (1 << power):.2f} {unit}"
    return f"{size_bytes} bytes"
