"""Which models lie below a place, by the names of their files."""

import pytest

from headrace.source.models_below import models_below
from headrace.source.objects import ObjectInfo


def found(*names: str) -> list[tuple[str, str, int]]:
    items = [ObjectInfo(f"p/{name}", name, 10, "v", 100 + number) for number, name in enumerate(names)]
    return [(model.path, model.format, model.files) for model in models_below(items)]


def test_each_folder_with_config_and_weights_is_a_model() -> None:
    assert found(
        "qwen/config.json",
        "qwen/model.safetensors",
        "team/llama/config.json",
        "team/llama/model.safetensors",
        "x",
    ) == [("qwen", "safetensors", 2), ("team/llama", "safetensors", 2)]


def test_the_place_itself_may_be_a_model() -> None:
    assert found("config.json", "model.safetensors", "templates/x.jinja") == [("", "safetensors", 3)]


def test_what_lies_deeper_belongs_to_the_model_above_it() -> None:
    names = (
        "m/config.json",
        "m/model.safetensors",
        "m/original/consolidated.00.pth",
        "m/original/params.json",
    )
    assert found(*names) == [("m", "safetensors", 4)]


def test_a_trainers_checkpoint_below_a_model_is_a_model_of_its_own() -> None:
    names = (
        "m/config.json",
        "m/model.safetensors",
        "m/checkpoint-5/config.json",
        "m/checkpoint-5/model.safetensors",
    )
    assert found(*names) == [("m", "safetensors", 2), ("m/checkpoint-5", "safetensors", 2)]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["config.json", "model-00001-of-00002.safetensors"], "safetensors, incomplete"),
        (["model.safetensors"], "safetensors, incomplete"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter"),
        (["config.json", "adapter_config.json", "adapter_model.safetensors"], "adapter"),
        (["config.json", "adapter_config.json", "model.safetensors"], "safetensors"),
        (["config.json", "consolidated.safetensors"], "safetensors, incomplete"),
        (["config.json", "pytorch_model.bin"], "pickle"),
        (["model.Q4_K_M.gguf"], "gguf"),
        (["config.json", "tokenizer.json"], "no weights"),
        (["config.json", "model.safetensors.index.json", "part-1.safetensors"], "safetensors"),
    ],
    ids=str,
)
def test_the_format_is_told_by_the_names(names: list[str], kind: str) -> None:
    ((_, told, _),) = found(*(f"m/{name}" for name in names))
    assert told == kind


def test_folders_without_a_model_are_none() -> None:
    assert found("README.md", "data/train.parquet", "m/tokenizer.json") == []


def test_size_and_the_youngest_change_are_of_all_files() -> None:
    items = [
        ObjectInfo("p/m/config.json", "m/config.json", 10, "v", 5),
        ObjectInfo("p/m/model.safetensors", "m/model.safetensors", 90, "v", None),
        ObjectInfo("p/m/a/b", "m/a/b", 1, "v", 7),
    ]
    (model,) = models_below(items)
    assert (model.size_bytes, model.changed_s) == (101, 7)


def test_a_place_of_another_name_that_begins_alike_is_not_mixed_up() -> None:
    names = ("m/config.json", "m/model.safetensors", "m2/sub/config.json", "m-b/config.json")
    assert [path for path, _, _ in found(*names)] == ["m", "m-b", "m2/sub"]
