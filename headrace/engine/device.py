"""Which device, dtype and how many threads: torch's part of the options."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.ipc.options import EngineOptions
from headrace.stream.cgroup import cpu_limits
from headrace.stream.checkpoint.header import Shard

_OF_SAFETENSORS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class BadDevice(HeadraceError):
    """The device or dtype that was asked for is not to be had."""


def choose_dtype(options: EngineOptions, config: Mapping[str, Any], shards: Sequence[Shard]) -> str:
    """The model's dtype, torch's name.

    "auto" takes config.json's (`dtype`, of old `torch_dtype`), or else the one most of the weights have:
    what comes from the bucket is what runs.
    """
    if options.dtype != "auto":
        return options.dtype
    named = config.get("dtype") or config.get("torch_dtype")
    if isinstance(named, str) and named.removeprefix("torch.") in _OF_SAFETENSORS.values():
        return named.removeprefix("torch.")
    sizes: dict[str, int] = {}
    for shard in shards:
        for tensor in shard.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.end - tensor.start
    known = {name: size for name, size in sizes.items() if name in _OF_SAFETENSORS}
    if not known:
        return "bfloat16" if not sizes else "float32"
    return _OF_SAFETENSORS[max(known, key=lambda name: known[name])]


def plain_device(options: EngineOptions) -> str | None:
    """The device where torch, which takes a second and more to import, need not be asked; None where it must be."""
    if options.device == "cpu" or (options.device == "auto" and not Path("/dev/nvidiactl").exists()):
        return "cpu"
    return None


def choose_device(options: EngineOptions) -> str:
    """ "cpu" or "cuda"; imports torch unless the answer is plain.

    Raises:
        BadDevice: CUDA was asked for and is not there.
    """
    if (plain := plain_device(options)) is not None:
        return plain
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if options.device == "cuda":
        raise BadDevice(
            "--device cuda: torch finds no CUDA device.",
            remedy="Install a CUDA build of torch and the driver, or use --device cpu.",
        )
    return "cpu"


def is_apart(device: str) -> bool:
    """Whether it computes with memory of its own, to which parameters are copied from where they arrive."""
    return device != "cpu"


def cpu_count() -> int:
    """Cores that this process may use: its affinity, and its cgroup's quota rounded up."""
    return min([len(os.sched_getaffinity(0)), *cpu_limits()])


def set_threads() -> int:
    """Give torch one thread a core and no pool beside it; the number of threads."""
    import torch

    count = cpu_count()
    torch.set_num_threads(count)
    if torch.get_num_interop_threads() != 1:  # torch refuses to be told twice in one process
        torch.set_num_interop_threads(1)
    return count
