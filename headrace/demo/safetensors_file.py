"""Writing safetensors files, one tensor in memory at a time.

Format: https://github.com/huggingface/safetensors (8 bytes of header length, JSON header, raw data).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor that is made when its turn to be written comes; stored as bfloat16.

    Attributes:
        values: gives the float32 values, of `shape`.
    """

    name: str
    shape: tuple[int, ...]
    values: Callable[[], npt.NDArray[np.float32]]

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return 2 * int(np.prod(self.shape))


def write_checkpoint(folder: Path, tensors: Sequence[PendingTensor], *, shards: int = 1) -> None:
    """Write model.safetensors, or `shards` files of about the same size with an index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    weight_map: dict[str, str] = {}
    for number, part in enumerate(split_evenly(tensors, shards), start=1):
        file_name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file_name, part)
        weight_map.update((tensor.name, file_name) for tensor in part)
    index = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor in tensors)},
        "weight_map": weight_map,
    }
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def split_evenly(tensors: Sequence[PendingTensor], parts: int) -> list[list[PendingTensor]]:
    """Cut the row of tensors into `parts` runs of about the same number of bytes, none of them empty."""
    assert 1 <= parts <= len(tensors)
    total = sum(tensor.size_bytes for tensor in tensors)
    runs: list[list[PendingTensor]] = [[]]
    written = 0
    for position, tensor in enumerate(tensors):
        left_over = len(tensors) - position
        full = written >= total * len(runs) / parts and runs[-1]
        if len(runs) < parts and (full or left_over == parts - len(runs)):
            runs.append([])
        runs[-1].append(tensor)
        written += tensor.size_bytes
    return runs


def write_safetensors(path: Path, tensors: Sequence[PendingTensor]) -> None:
    """Write one file; tensors lie in it in the given order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            values = tensor.values()
            assert values.shape == tensor.shape, (tensor.name, values.shape, tensor.shape)
            # ml_dtypes' arrays have no buffer protocol; their bits as uint16 do.
            file.write(np.ascontiguousarray(values).astype(ml_dtypes.bfloat16).view(np.uint16).data)
