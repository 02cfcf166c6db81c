"""The memory plan: what weights and KV cache may take, decided from headers before a byte is loaded."""

import os
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.stream.cgroup import memory_limits_bytes

# A pool that cannot hold this many tokens serves nobody.
LEAST_TOKENS = 1024


class NotEnoughMemory(HeadraceError):
    """Weights and a useful KV cache do not fit the share of memory that they may take."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The sum. Bytes, but for `pool_tokens`.

    Attributes:
        device: its name, for a person.
        total_bytes: the device's memory (for a CPU: the machine's, or its cgroup's limit).
        fraction: --mem-fraction-static.
        weights_bytes: the model's parameters as they lie in memory.
        bytes_per_token: keys and values of one token in all layers.
        pool_tokens: size of the KV pool, a multiple of the page size.
    """

    device: str
    total_bytes: int
    fraction: float
    weights_bytes: int
    bytes_per_token: int
    pool_tokens: int

    def describe(self) -> str:
        """The sum as one line."""
        return (
            f"Memory on {self.device}: {self.fraction:g} of {_size(self.total_bytes)} = "
            f"{_size(share_bytes(self.total_bytes, self.fraction))}; weights {_size(self.weights_bytes)}, KV cache "
            f"{self.pool_tokens:,} tokens × {self.bytes_per_token / 1024:.1f} KiB = "
            f"{_size(self.pool_tokens * self.bytes_per_token)}"
        )


def plan_memory(
    *,
    device: str,
    total_bytes: int,
    fraction: float,
    weights_bytes: int,
    bytes_per_token: int,
    context_length: int,
    page_size: int,
    max_running_requests: int,
    max_total_tokens: int | None,
) -> MemoryPlan:
    """Size the KV pool: what the share leaves, but no more than all running requests can use.

    Raises:
        NotEnoughMemory: the rest cannot hold `max_total_tokens`, or a useful pool; with the sum and the
            smallest fraction that works.
    """
    share = share_bytes(total_bytes, fraction)
    fit = max(0, share - weights_bytes) // bytes_per_token // page_size * page_size
    useful = _round_up(max_running_requests * context_length, page_size)
    least = _round_up(min(LEAST_TOKENS, context_length), page_size)
    wanted = _round_up(max_total_tokens, page_size) if max_total_tokens is not None else least
    if fit < wanted:
        needed = weights_bytes + wanted * bytes_per_token
        smallest = -(-needed * 1000 // total_bytes) / 1000
        sums = (
            f"{device[:1].upper()}{device[1:]} has {_size(total_bytes)} in total, the share is {_size(share)}; weights "
            f"take {_size(weights_bytes)}, the KV cache {bytes_per_token:,} bytes per token × {wanted:,} tokens "
            f"wanted = {_size(wanted * bytes_per_token)}, together {_size(needed)}."
        )
        if smallest <= 1:
            remedy = f"Raise --mem-fraction-static to {smallest:g} or more."
        else:
            remedy = f"No fraction works: take a device with {_size(needed)} or more, or a smaller model."
        if wanted > least:
            remedy += " Or lower --max-total-tokens."
        raise NotEnoughMemory(
            f"Loaded weights leave no memory for the KV cache under --mem-fraction-static={fraction:g}. {sums}",
            remedy=remedy,
        )
    pool = wanted if max_total_tokens is not None else min(fit, useful)
    return MemoryPlan(device, total_bytes, fraction, weights_bytes, bytes_per_token, pool)


def machine_memory_bytes() -> int:
    """The machine's memory, or the cgroup's limit where that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *memory_limits_bytes()])


def share_bytes(total_bytes: int, fraction: float) -> int:
    """The share of the memory that weights and KV cache may take, rounded down.

    Counted in millionths, not in floating point: what is advised as the smallest fraction must then work.
    """
    return total_bytes * round(fraction * 1_000_000) // 1_000_000


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _size(size_bytes: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes * 10 >= 1 << power:
            return f"{size_bytes / (1 << power):.2f} {unit}"
    return f"{size_bytes} bytes"
