"""What one load costs: clocks, CPU seconds and resident memory of this process. Standard library only."""

import contextlib
import gc
import hashlib
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.bench.scene import Measurement

_SAMPLE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loader ended with. It holds the tensors, so that they count as memory until they are measured.

    Attributes:
        tensors: by name, whatever the loader takes for one.
        bytes_of: a tensor's bytes; called after the measuring.
        first_tensor_s: since the load began.
        size_bytes: bytes that were loaded, where there are no tensors to count.
    """

    tensors: Mapping[str, Any] = field(default_factory=dict)
    bytes_of: Callable[[Any], memoryview] = memoryview
    first_tensor_s: float | None = None
    requests: int | None = None
    size_bytes: int = 0
    facts: Mapping[str, float] = field(default_factory=dict)


def measure(load: Callable[[float], Loaded]) -> Measurement:
    """Run a load and tell what it cost.

    Args:
        load: is given the time (of `time.perf_counter`) at which it began.
    """
    gc.collect()  # else the imports' own collection, a tenth of a second of torch, falls into one load and not the other
    _forget_peak()
    resident_before = _status_bytes("VmRSS")
    before = _cpu_s()
    start = time.perf_counter()
    loaded = load(start)
    wall_s = time.perf_counter() - start
    after = _cpu_s()
    peak = max(_status_bytes("VmHWM") - resident_before, _children_peak_bytes())
    digest, size_bytes = _digest(loaded)
    return Measurement(
        wall_s=wall_s,
        user_s=after[0] - before[0],
        system_s=after[1] - before[1],
        peak_bytes=peak,
        tensor_bytes=size_bytes or loaded.size_bytes,
        tensors=len(loaded.tensors),
        first_tensor_s=loaded.first_tensor_s,
        requests=loaded.requests,
        digest=digest,
        facts=loaded.facts,
    )


def _digest(loaded: Loaded) -> tuple[str, int]:
    """A hash over the names, the sizes and both ends of each tensor; and the bytes of all."""
    state, total = hashlib.sha256(), 0
    for name in sorted(loaded.tensors):
        data = loaded.bytes_of(loaded.tensors[name])
        total += len(data)
        state.update(f"{len(name)} {name} {len(data)} ".encode())
        state.update(data[:_SAMPLE_BYTES])
        state.update(data[-_SAMPLE_BYTES:])
    return (state.hexdigest()[:16] if total else "", total)


def _cpu_s() -> tuple[float, float]:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime


def _children_peak_bytes() -> int:
    """The largest of the processes that this one started and waited for; 0 if there was none."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


def _forget_peak() -> None:
    """Let the high-water mark begin anew: imports needed more than what is left of them."""
    with contextlib.suppress(OSError):  # a kernel without it: the mark then holds the imports' too
        Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(name: str) -> int:
    """A line of /proc/self/status. ru_maxrss would not do: it outlives the start of a new program."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    return 0
