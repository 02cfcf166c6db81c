"""Checkpoints that went wrong in one way each: functions that break a good folder of three shards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Break = Callable[[Path], None]

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00003.safetensors"


def without(*names: str) -> Break:
    """Leave files out."""

    def apply(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return apply


def without_weights(folder: Path) -> None:
    """Only pickled weights, as old repositories have them."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def with_content(name: str, content: bytes) -> Break:
    """Replace a file."""

    def apply(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return apply


def with_config(**fields: Any) -> Break:
    """Other values in config.json."""

    def apply(folder: Path) -> None:
        _edit_json(folder / "config.json", lambda config: config.update(fields))

    return apply


def index_with_a_tensor_too_many(folder: Path) -> None:
    """The index names a tensor that its shard does not hold."""
    _edit_json(folder / INDEX, lambda index: index["weight_map"].update({"model.extra.weight": SHARD}))


def with_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Break:
    """Other tensors in the second shard, and an index that agrees with it."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / SHARD)
        change(tensors)
        save_file(tensors, folder / SHARD)

        def agree(index: dict[str, Any]) -> None:
            others = {name: shard for name, shard in index["weight_map"].items() if shard != SHARD}
            index["weight_map"] = {**others, **dict.fromkeys(tensors, SHARD)}

        _edit_json(folder / INDEX, agree)

    return apply


def cut_off(folder: Path) -> None:
    """A shard whose second half was never uploaded."""
    data = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(data[: len(data) // 2])


def _edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
