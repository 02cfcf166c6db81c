"""The bytes of torch's tensors, to be compared after a load."""

from collections.abc import Callable
from functools import partial
from typing import Any


def bytes_of(tensor: Any) -> Callable[[], memoryview]:
    """A function that gives a torch tensor's bytes, in row-major order."""
    return partial(_bytes, tensor)


def _bytes(tensor: Any) -> memoryview:
    import torch

    flat = tensor.contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def touch(tensor: Any) -> int:
    """Read a byte of each page of a tensor: a mapped file's bytes come only then."""
    return int(_bytes(tensor)[::4096].tobytes().count(b"\0"))
