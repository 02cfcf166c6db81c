"""A layout takes every tensor of a checkpoint once, in the shape that the file holds."""

import re
from collections import Counter
from typing import Any

import pytest
import torch

from headrace.models.layout import Layout
from headrace.models.registry import FAMILIES, layout_of
from tests.tiny_models import checkpoint_tensors, config_json, fill, make_tiny, parameters_of

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 24, "attention_bias": True, "mlp_bias": True}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "head_dim": 24}),
    ("mistral", {}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
]
each_option = pytest.mark.parametrize(("family", "fields"), OPTIONS)


def sources(layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
    return [(source.name, source.shape) for spec in layout.parameters for source in spec.sources]


@each_option
def test_every_checkpoint_tensor_is_taken_once_in_its_shape(family: str, fields: dict[str, Any]) -> None:
    model = make_tiny(family, **fields)
    held = [(name, tuple(tensor.shape)) for name, tensor in checkpoint_tensors(model).items()]
    assert Counter(sources(layout_of(config_json(model)))) == Counter(held)


@each_option
def test_the_sources_fill_their_parameter(family: str, fields: dict[str, Any]) -> None:
    model = make_tiny(family, **fields)
    layout = layout_of(config_json(model))
    filled = fill(layout, checkpoint_tensors(model))
    assert {name: tuple(tensor.shape) for name, tensor in filled.items()} == {
        spec.name: spec.shape for spec in layout.parameters
    }


def test_query_key_and_value_lie_one_under_another() -> None:
    model = make_tiny("qwen2")
    tensors, parameters = checkpoint_tensors(model), parameters_of(model)
    for kind in ("weight", "bias"):
        parts = [tensors[f"model.layers.1.self_attn.{part}_proj.{kind}"] for part in "qkv"]
        assert torch.equal(parameters[f"layers.1.qkv_proj.{kind}"], torch.cat(parts))


def test_a_tied_model_whose_file_names_only_the_head_takes_its_embedding_from_there() -> None:
    config = config_json(make_tiny("llama", tie_word_embeddings=True))
    names = {name for name, _ in sources(layout_of(config, {"lm_head.weight"}))}
    assert "lm_head.weight" in names
    assert "model.embed_tokens.weight" not in names


@pytest.mark.parametrize(
    ("tied", "after_the_layers"),
    [
        (False, {3: ["embed_tokens.weight"], 4: ["norm.weight", "lm_head.weight"]}),
        (True, {3: ["norm.weight", "embed_tokens.weight"]}),
    ],
    ids=["untied", "tied"],
)
@pytest.mark.parametrize("family", FAMILIES.values())
def test_groups_ascend_through_the_layers_to_the_embedding_and_the_head(
    family: str, tied: bool, after_the_layers: dict[int, list[str]]
) -> None:
    layout = layout_of(config_json(make_tiny(family, tie_word_embeddings=tied)))
    groups = [spec.group for spec in layout.parameters]
    assert groups == sorted(groups)
    by_group = {group: [spec.name for spec in layout.parameters if spec.group == group] for group in groups}
    for layer in range(3):
        names = by_group.pop(layer)
        assert names and all(name.startswith(f"layers.{layer}.") for name in names)
    assert by_group == after_the_layers
    assert layout.embedding == "embed_tokens.weight"


@pytest.mark.parametrize(
    ("name", "tied", "ignored"),
    [
        ("model.layers.11.self_attn.rotary_emb.inv_freq", False, True),
        ("model.rotary_emb.inv_freq", False, True),
        ("lm_head.weight", True, True),
        ("lm_head.weight", False, False),
        ("model.layers.0.self_attn.q_proj.weight", True, False),
        ("model.layers.0.self_attn.q_proj.bias", True, False),
    ],
)
def test_only_what_is_known_to_be_needless_is_ignored(name: str, tied: bool, ignored: bool) -> None:
    layout = layout_of(config_json(make_tiny("llama", tie_word_embeddings=tied)))
    assert any(re.fullmatch(pattern, name) for pattern in layout.ignored) is ignored
