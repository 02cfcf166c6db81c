"""Checkpoints of random weights, made once in a folder and kept: the loaders' food."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SHARD_BYTES = 1 << 30
_BLOCK_BYTES = 8 << 20

# The hidden size of a model of 1 to 3 billion parameters, and of one that is small enough for a slow link.
_LARGE, _SMALL = 2048, 512
_LARGE_FROM_BYTES = 500_000_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """A bfloat16 tensor to be written."""

    name: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Two bytes an element."""
        count = 2
        for length in self.shape:
            count *= length
        return count


def layers_of(size_bytes: int) -> list[Tensor]:
    """An embedding of a fifth of the size at the most, and as many layers as come nearest to the size."""
    hidden = _LARGE if size_bytes >= _LARGE_FROM_BYTES else _SMALL
    vocabulary = min(128_256, size_bytes // 5 // (2 * hidden))
    tensors = [Tensor("model.embed_tokens.weight", (vocabulary, hidden))]
    layer_bytes = sum(tensor.size_bytes for tensor in _layer(0, hidden))
    for number in range(max(1, round((size_bytes - tensors[0].size_bytes) / layer_bytes))):
        tensors += _layer(number, hidden)
    return tensors


def _layer(number: int, hidden: int) -> list[Tensor]:
    """The tensors of a Llama layer with a feed-forward part four times as wide and a quarter of the KV heads."""
    shapes = {
        "input_layernorm": (hidden,),
        "mlp.down_proj": (hidden, 4 * hidden),
        "mlp.gate_proj": (4 * hidden, hidden),
        "mlp.up_proj": (4 * hidden, hidden),
        "post_attention_layernorm": (hidden,),
        "self_attn.k_proj": (hidden // 4, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.v_proj": (hidden // 4, hidden),
    }
    return [Tensor(f"model.layers.{number}.{name}.weight", shape) for name, shape in shapes.items()]


def small_tensors(count: int) -> list[Tensor]:
    """So many tensors of 1 KiB."""
    return [Tensor(f"small.{number:06d}", (512,)) for number in range(count)]


def checkpoint(folder: Path, tensors: Sequence[Tensor]) -> Path:
    """A folder with these tensors in shards of about 1 GiB and their index; what is there already is kept."""
    shards = _in_shards(tensors)
    names = (
        ["model.safetensors"]
        if len(shards) == 1
        else [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, shard in zip(names, shards, strict=True):
        _write(folder / name, shard)
    if len(shards) > 1:
        weight_map = {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        }
        index = {"metadata": {"total_size": sum(t.size_bytes for t in tensors)}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def warm(folder: Path) -> int:
    """Read the safetensors once, so that they lie in the page cache; their bytes."""
    total = 0
    buffer = bytearray(_BLOCK_BYTES)
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def _in_shards(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.size_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size_bytes
    return shards


def _write(path: Path, tensors: Sequence[Tensor]) -> None:
    entries, at = {}, 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": "BF16",
            "shape": tensor.shape,
            "data_offsets": (at, at + tensor.size_bytes),
        }
        at += tensor.size_bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if path.exists() and path.stat().st_size == 8 + len(header) + at:
        return
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for block in _random_blocks(at):
            file.write(block)
    part.rename(path)


def _random_blocks(size_bytes: int) -> Iterator[bytes]:
    """Random bytes, of which no two blocks are alike: what is in the wrong place is seen."""
    block = os.urandom(_BLOCK_BYTES)
    for at in range(0, size_bytes, _BLOCK_BYTES):
        shift = at // _BLOCK_BYTES * 4099 % _BLOCK_BYTES
        yield (block[shift:] + block[:shift])[: size_bytes - at]
