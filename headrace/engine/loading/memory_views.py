"""torch tensors over arena memory: parameters and the KV cache."""

import ctypes
import mmap
import os
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from headrace.engine.loading.weights import ArenaPlan
from headrace.models.batch import KVCache
from headrace.stream.arena import Arena

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name."""
    return _DTYPES[name]


def wrap_parameters(arena: Arena, plan: ArenaPlan) -> dict[str, torch.Tensor]:
    """Each parameter as a tensor over its place in the arena; no byte is read or copied.

    numpy's array pins the mapping for as long as a tensor lives.
    """
    memory = torch.from_numpy(np.frombuffer(arena.view, dtype=np.uint8))
    dtype = torch_dtype(plan.dtype)
    return {
        slot.name: memory[slot.offset : slot.offset + slot.size_bytes].view(dtype).view(slot.shape)
        for slot in plan.slots
    }


def fill_with_noise(parameters: Mapping[str, torch.Tensor], seed: int) -> None:
    """--load-format dummy: small random values, so that a step costs what the real one does."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in parameters.values():
        tensor.uniform_(-0.02, 0.02, generator=generator)


def make_cache(
    layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """The KV cache, zeros. On the CPU its pages are reserved but not touched."""
    shape = (slots, kv_heads, head_dim)

    def one() -> torch.Tensor:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        size = slots * kv_heads * head_dim * dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        memory = mmap.mmap(-1, size, flags=flags)
        return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(dtype).view(shape)

    return KVCache(tuple(one() for _ in range(layers)), tuple(one() for _ in range(layers)))


def give_back(tensors: Iterable[torch.Tensor]) -> None:
    """Let the system have the tensors' memory again; they stay as they are, with nothing in them.

    On the CPU the whole pages in each become zeros that take no memory until they are written to. On a device they
    cannot be used until `take_again`.
    """
    on_device = False
    for tensor in tensors:
        if tensor.device.type != "cpu":
            tensor.untyped_storage().resize_(0)
            on_device = True
            continue
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (tensor.data_ptr() + tensor.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        if size > 0 and _libc.madvise(start, size, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if on_device:
        torch.cuda.empty_cache()


def take_again(tensors: Iterable[torch.Tensor]) -> None:
    """Memory for what `give_back` took it from: zeros. On the CPU there is nothing to do."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type != "cpu" and storage.nbytes() == 0:
            storage.resize_(tensor.nbytes)
            tensor.zero_()  # nothing that was never written may be NaN


# For memory of which only torch knows where it is.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
