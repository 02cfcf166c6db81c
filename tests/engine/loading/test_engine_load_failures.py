"""Checkpoints that cannot be served: the process says why in a sentence, and ends with 1."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.ipc.messages import LoadFailed, ModelInfo
from headrace.models.registry import FAMILIES
from tests.engine.engine_process import running_engine
from tests.tiny_models import make_tiny, save_checkpoint

SHARD = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good checkpoint in two shards, to be spoiled."""
    path = tmp_path / "model"
    save_checkpoint(make_tiny("llama"), path, shards=2)
    return path


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rewrite(folder: Path, tensor: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the shard that holds a tensor."""
    index = json.loads((folder / INDEX).read_text())
    path = folder / index["weight_map"][tensor]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def failure(folder: Path, tmp_path: Path, **options: Any) -> LoadFailed:
    """How the engine refuses the folder; it has ended with 1, without a traceback."""
    with running_engine(tmp_path, str(folder), **options) as engine:
        _, failed = engine.receive_until(LoadFailed)
        assert engine.wait() == 1
        assert "Traceback" not in engine.errors()
    assert failed.remedy
    return failed


def test_a_folder_without_config_json(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    failed = failure(folder, tmp_path)
    assert failed.error == "BadMetadata"
    assert failed.message.startswith(f"{folder} holds no config.json. There is: generation_config.json,")


def test_a_config_that_is_not_json(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"architectures": [')
    failed = failure(folder, tmp_path)
    assert failed.error == "BadMetadata"
    assert f"{folder}/config.json is not valid JSON" in failed.message


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_small_file_that_is_not_utf_8(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).write_bytes(b'{"a": "\xff"}')
    failed = failure(folder, tmp_path)
    assert failed.error == "BadMetadata"
    assert f"{folder}/{name} is not UTF-8 text (byte 7)." in failed.message


def test_small_files_may_begin_with_a_byte_order_mark_which_is_not_passed_on(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    with running_engine(tmp_path, str(folder)) as engine:
        _, info = engine.receive_until(ModelInfo)
        assert info.config.startswith("{")
        assert info.generation_config.startswith("{")


def test_an_architecture_that_is_not_supported(folder: Path, tmp_path: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(architectures=["MambaForCausalLM"]))
    failed = failure(folder, tmp_path)
    assert failed.error == "UnsupportedModel"
    assert "MambaForCausalLM" in failed.message
    assert failed.remedy == f"Supported: {', '.join(FAMILIES)}."


def test_an_index_that_names_a_missing_shard(folder: Path, tmp_path: Path) -> None:
    (folder / SHARD).unlink()
    failed = failure(folder, tmp_path)
    assert failed.error == "BadModelFiles"
    assert f"names 1 of 2 shards that are not there: {SHARD}" in failed.message


def test_an_index_that_names_a_tensor_which_is_not_in_its_shard(folder: Path, tmp_path: Path) -> None:
    edit(folder / INDEX, lambda index: index["weight_map"].update({"model.ghost": SHARD}))
    failed = failure(folder, tmp_path)
    assert failed.error == "BadModelFiles"
    assert f"model.ghost (in {SHARD})" in failed.message


def test_a_missing_tensor(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, NORM, lambda tensors: tensors.pop(NORM))
    edit(folder / INDEX, lambda index: index["weight_map"].pop(NORM))
    failed = failure(folder, tmp_path)
    assert failed.error == "WrongTensors"
    assert failed.message.endswith(f"Missing: {NORM}.")


def test_an_unexpected_tensor(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, NORM, lambda tensors: tensors.update(surprise=torch.ones(3)))
    failed = failure(folder, tmp_path)
    assert failed.error == "WrongTensors"
    assert failed.message.endswith("Unexpected: surprise.")


def test_a_tensor_of_another_shape(folder: Path, tmp_path: Path) -> None:
    rewrite(
        folder, EMBEDDING, lambda tensors: tensors.update({EMBEDDING: tensors[EMBEDDING][:-1].contiguous()})
    )
    failed = failure(folder, tmp_path)
    assert failed.error == "WrongTensors"
    assert failed.message.endswith(f"Of another shape: {EMBEDDING} [319, 64] (config.json: [320, 64]).")


def test_a_truncated_shard(folder: Path, tmp_path: Path) -> None:
    path = folder / SHARD
    size = path.stat().st_size
    with open(path, "r+b") as shard:
        shard.truncate(size - 1000)
    failed = failure(folder, tmp_path)
    assert failed.error == "BadHeader"
    assert f"{path}: the object is cut off" in failed.message
    assert f"{size:,} bytes, the listing says {size - 1000:,}" in failed.message


@pytest.mark.parametrize(
    ("start", "cause"),
    [
        (b"\xff" * 8, "its header claims"),
        ((30).to_bytes(8, "little") + b"not json", "its header is not valid JSON"),
    ],
    ids=["length", "content"],
)
def test_a_corrupt_header(folder: Path, tmp_path: Path, start: bytes, cause: str) -> None:
    path = folder / SHARD
    with open(path, "r+b") as shard:
        shard.write(start)
    failed = failure(folder, tmp_path)
    assert failed.error == "BadHeader"
    assert f"{path}: {cause}" in failed.message


def test_a_fraction_of_memory_that_is_too_small(folder: Path, tmp_path: Path) -> None:
    failed = failure(folder, tmp_path, mem_fraction_static=0.000001)
    assert failed.error == "NotEnoughMemory"
    assert failed.message.startswith(
        "Loaded weights leave no memory for the KV cache under --mem-fraction-static=1e-06. The CPU has"
    )
    assert failed.remedy == "Raise --mem-fraction-static to 0.001 or more."


def test_a_share_that_leaves_nothing_to_the_process_itself(folder: Path, tmp_path: Path) -> None:
    failed = failure(folder, tmp_path, mem_fraction_static=1.0, max_running_requests=10**9)
    assert failed.error == "NotEnoughMemory"
    assert failed.message.startswith("Weights and KV cache would take more memory than there is. The CPU has")
    assert "0.38 GiB of it for the process itself; weights take" in failed.message
    assert re.fullmatch(
        r"Lower --mem-fraction-static to 0\.\d+ or less, or give --max-total-tokens \d+ or less\.",
        failed.remedy,
    )


def test_more_tokens_than_any_machine_holds(folder: Path, tmp_path: Path) -> None:
    failed = failure(folder, tmp_path, mem_fraction_static=None, max_total_tokens=10**12)
    assert failed.error == "NotEnoughMemory"
    assert failed.remedy.endswith("Or lower --max-total-tokens.")


def test_a_context_length_beyond_the_models(folder: Path, tmp_path: Path) -> None:
    failed = failure(folder, tmp_path, context_length=513)
    assert failed.error == "BadContextLength"
    assert "--context-length 513 is more than the model's own 512" in failed.message


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    failed = failure(tmp_path / "nowhere", tmp_path)
    assert failed.error == "BadSource"
    assert f"There is no folder {tmp_path / 'nowhere'}." in failed.message
