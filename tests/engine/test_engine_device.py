"""dtype, device and threads."""

import os
from typing import Any

import pytest
import torch

from headrace.engine.device import BadDevice, choose_device, choose_dtype, cpu_count, set_threads
from headrace.ipc.options import EngineOptions
from headrace.source.objects import ObjectInfo
from headrace.stream.checkpoint.header import Shard, TensorInfo


def shard(*tensors: tuple[str, int]) -> Shard:
    """A shard with tensors of these dtypes and sizes in bytes."""
    infos = {
        str(number): TensorInfo(str(number), dtype, (size,), 0, size)
        for number, (dtype, size) in enumerate(tensors)
    }
    return Shard(ObjectInfo("key", "model.safetensors", 1, "v"), infos)


def dtype(config: dict[str, Any], shards: list[Shard], **options: Any) -> str:
    return choose_dtype(EngineOptions(model="m", **options), config, shards)


def test_a_dtype_that_was_asked_for_is_taken() -> None:
    assert dtype({"dtype": "bfloat16"}, [shard(("BF16", 8))], dtype="float16") == "float16"


@pytest.mark.parametrize(
    "config", [{"dtype": "float16"}, {"torch_dtype": "float16"}, {"dtype": "torch.float16"}]
)
def test_auto_is_what_the_config_says_in_any_spelling(config: dict[str, Any]) -> None:
    assert dtype(config, [shard(("BF16", 8))]) == "float16"


@pytest.mark.parametrize("config", [{}, {"dtype": None}, {"dtype": "float64"}, {"torch_dtype": 7}])
def test_auto_without_a_usable_word_is_what_most_weight_bytes_have(config: dict[str, Any]) -> None:
    shards = [shard(("F32", 100), ("BF16", 60)), shard(("BF16", 60))]
    assert dtype(config, shards) == "bfloat16"


def test_auto_of_weights_that_are_no_float_is_float32() -> None:
    assert dtype({}, [shard(("F64", 100))]) == "float32"


def test_auto_without_weights_is_bfloat16() -> None:
    assert dtype({}, []) == "bfloat16"


def test_the_cpu_is_had_for_the_asking() -> None:
    assert choose_device(EngineOptions(model="m", device="cpu")) == "cpu"


def test_auto_is_cuda_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device(EngineOptions(model="m", device="auto")) == expected


def test_cuda_on_a_machine_without_it_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    # No test machine can be relied on to have no GPU.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadDevice, match="torch finds no CUDA device") as caught:
        choose_device(EngineOptions(model="m", device="cuda"))
    assert "--device cpu" in caught.value.remedy


def test_threads_are_the_cores_that_the_process_may_use() -> None:
    assert 1 <= cpu_count() <= len(os.sched_getaffinity(0))
    assert set_threads() == cpu_count() == torch.get_num_threads()


def test_threads_can_be_set_twice_in_one_process() -> None:
    set_threads()
    set_threads()
    assert torch.get_num_interop_threads() == 1
