"""`headrace check` over checkpoints with one thing wrong: which check finds it, and what it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.engine.check import model as check_model_module
from headrace.engine.check.finding import Finding
from headrace.engine.check.place import Place
from headrace.engine.check.preflight import preflight
from headrace.engine.check.speed import measure
from headrace.ipc.options import EngineOptions
from headrace.source.objects import Listing
from headrace.source.uri import parse_source
from headrace.store.base import open_store
from headrace.stream.checkpoint.headers import ReaderPool
from headrace.stream.library.memory_room import Room
from tests.faults import server as faults
from tests.faults.opening import environment_of
from tests.faults.server import fault_server
from tests.tiny_models import make_tiny, save_checkpoint

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "model"
    save_checkpoint(make_tiny("llama"), folder, shards=2)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A good checkpoint, to be spoiled."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in good.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def checked(folder: Path | str, **options: Any) -> dict[str, Finding]:
    options.setdefault("device", "cpu")
    found = list(preflight(EngineOptions(model=str(folder), **options)))
    assert all(finding.remedy for finding in found if finding.status != "ok")
    return {finding.check: finding for finding in found}


def failed(found: dict[str, Finding]) -> list[str]:
    return [name for name, finding in found.items() if finding.status == "fail"]


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_good_checkpoint_passes_every_check(good: Path) -> None:
    found = checked(good)
    assert failed(found) == []
    assert list(found) == [
        "settings", "list", "read", "files", "weights", "headers", "index", "tokenizer", "architecture", "tensors",
        "memory", "verification", "speed",
    ]  # fmt: skip
    assert found["headers"].facts["dtypes"].keys() == {"F32"}
    assert found["tensors"].facts["dtype"] == "float32"
    assert found["verification"].status == "warn"


def test_a_name_that_means_nothing_ends_it() -> None:
    assert list(checked("ftp://host/model")) == ["name"]


def test_a_place_without_a_config_is_told_what_is_there(folder: Path) -> None:
    (folder / "config.json").unlink()
    found = checked(folder)
    assert failed(found) == ["files"]
    assert "holds no config.json. There is: " in found["files"].text


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / SHARD).unlink()
    found = checked(folder)
    assert failed(found) == ["weights"]
    assert SHARD in found["weights"].text


def test_a_shard_that_was_cut_off_is_named(folder: Path) -> None:
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:-5])
    found = checked(folder)
    assert failed(found) == ["headers"]
    assert SHARD in found["headers"].text


def test_an_index_of_another_checkpoint_is_told(folder: Path) -> None:
    edit(folder / INDEX, lambda index: index["weight_map"].update({"model.extra.weight": SHARD}))
    found = checked(folder)
    assert "index" in failed(found)
    assert "model.extra.weight" in found["index"].text


def test_tensors_that_the_index_does_not_name_are_a_warning(folder: Path) -> None:
    edit(folder / INDEX, lambda index: index["weight_map"].pop("model.norm.weight"))
    found = checked(folder)
    assert found["index"].status == "warn"
    assert "model.norm.weight" in found["index"].text


def test_an_index_that_adds_up_to_something_else_is_a_warning(folder: Path) -> None:
    edit(folder / INDEX, lambda index: index["metadata"].update({"total_size": 1}))
    assert checked(folder)["index"].status == "warn"


def test_an_architecture_that_is_not_served_is_named_and_the_rest_is_still_looked_at(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(architectures=["MambaForCausalLM"]))
    found = checked(folder)
    assert failed(found) == ["architecture"]
    assert "MambaForCausalLM" in found["architecture"].text
    assert "verification" in found


def test_a_tensor_that_is_missing_is_named(folder: Path) -> None:
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / INDEX).unlink()
    tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    found = checked(folder)
    assert failed(found) == ["tensors"]
    assert "model.norm.weight" in found["tensors"].text


def test_a_dtype_that_is_converted_on_the_way_is_told(good: Path) -> None:
    assert "converted on the way from F32" in checked(good, dtype="bfloat16")["tensors"].text


def test_memory_that_is_not_enough_is_told_with_what_would_be(good: Path) -> None:
    found = checked(good, mem_fraction_static=0.000001)
    assert failed(found) == ["memory"]
    assert "--mem-fraction-static" in found["memory"].remedy


def test_memory_that_others_hold_at_this_moment_is_a_warning(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_model_module, "memory_room", lambda: Room(10, "the machine's available memory"))
    found = checked(good)
    assert found["memory"].status == "warn"
    assert (
        "But at this moment: Weights and KV cache would take more memory than there is."
        in found["memory"].text
    )
    assert "the machine's available memory leaves 10 bytes now" in found["memory"].text
    assert "End what else takes memory" in found["memory"].remedy


def test_a_default_pool_that_others_make_smaller_is_told_and_no_warning(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_model_module, "memory_room", lambda: Room(500 << 20, "the control group"))
    found = checked(good, max_running_requests=10**6)
    assert found["memory"].status == "ok"
    assert "made smaller since the control group leaves 0.49 GiB now" in found["memory"].text


def test_a_context_that_is_too_long_is_told(good: Path) -> None:
    assert failed(checked(good, context_length=1_000_000)) == ["architecture"]


def test_a_model_without_a_tokenizer_cannot_be_served_alone(folder: Path, good: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert failed(checked(folder)) == ["tokenizer"]
    assert failed(checked(folder, tokenizer_path=str(good))) == []


def test_a_model_without_a_chat_template_is_a_warning(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda config: config.pop("chat_template"))
    assert checked(folder)["tokenizer"].status == "warn"


def test_more_tokens_than_the_model_has_are_a_warning(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(vocab_size=319))
    assert "319" in checked(folder)["tokenizer"].text


def test_a_stale_manifest_is_told(folder: Path) -> None:
    manifest = {"format": "headrace-manifest", "version": 1, "block_bytes": 1 << 20, "objects": {}}
    (folder / "headrace.manifest.json").write_text(json.dumps(manifest))
    found = checked(folder)
    assert failed(found) == ["verification"]
    assert "stale" in found["verification"].text


def test_what_lies_beside_and_is_not_loaded_is_named(folder: Path) -> None:
    save_file({"w": torch.zeros(1)}, folder / "model.fp16.safetensors")
    assert checked(folder)["weights"].facts["not_loaded"] == ["model.fp16.safetensors"]


def test_who_may_list_but_not_read_is_told(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {f"model/{path.name}": path.read_bytes() for path in good.iterdir()}
    with fault_server(objects) as server:
        for name, value in environment_of(server).items():
            monkeypatch.setenv(name, value)
        server.usual = faults.error(403, "AccessDenied")
        found = checked("s3://bucket/model")
    assert failed(found) == ["read"]
    assert found["list"].status == "ok"
    assert SHARD in found["read"].text or "model-00001" in found["read"].text


def test_a_place_that_cannot_keep_small_files_is_a_warning(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = {f"model/{path.name}": path.read_bytes() for path in good.iterdir()}
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with fault_server(objects) as server:
        for name, value in environment_of(server).items():
            monkeypatch.setenv(name, value)
        found = checked("s3://bucket/model")
    assert found["cache"].status == "warn"
    assert failed(found) == []


class Clock:
    """Every look at it takes the next of the given times."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)

    def __call__(self) -> float:
        return self._seconds.pop(0)


def rate_of(folder: Path, size_bytes: int, *seconds: float) -> tuple[float, int]:
    (folder / "big").write_bytes(bytes(size_bytes))
    store = open_store(parse_source(str(folder)))
    item = next(item for item in store.list().objects if item.name == "big")
    place = Place(store, Listing((item,)), ReaderPool(store, 8))
    rate = measure(place, item, Clock(*seconds))
    place.pool.abort()
    return rate.bytes_per_s, rate.size_bytes


def test_a_slow_link_is_measured_by_little(tmp_path: Path) -> None:
    assert rate_of(tmp_path, 20 << 20, 0.0, 1.0) == (256 << 10, 256 << 10)


def test_a_fast_one_is_measured_by_more_on_more_connections(tmp_path: Path) -> None:
    assert rate_of(tmp_path, 20 << 20, 0.0, 0.25, 1.0, 1.25, 2.0, 2.5) == (float(32 << 20), 16 << 20)


def test_the_best_round_counts(tmp_path: Path) -> None:
    assert rate_of(tmp_path, 20 << 20, 0.0, 0.125, 1.0, 9.0) == (float(2 << 20), 256 << 10)


def test_no_more_is_read_than_there_is(tmp_path: Path) -> None:
    assert rate_of(tmp_path, 100_000, 0.0, 0.25) == (400_000.0, 100_000)


def test_an_empty_object_has_no_rate(tmp_path: Path) -> None:
    assert rate_of(tmp_path, 0, 0.0, 0.25) == (0.0, 0)


def test_a_place_of_nothing_but_empty_objects_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"")
    assert failed(checked(tmp_path)) == ["weights"]
