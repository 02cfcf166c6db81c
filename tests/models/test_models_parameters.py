"""The model runs on the very tensors that it is given, and on nothing less than all of them."""

import pytest
import torch

from headrace.models.decoder.forward import DecoderModel
from headrace.models.errors import MissingParameter
from headrace.models.registry import read_config
from tests.tiny_models import config_json, make_tiny, parameters_of


def test_no_tensor_is_copied() -> None:
    model = make_tiny("qwen2", tie_word_embeddings=True)
    parameters = parameters_of(model)
    kept = DecoderModel(read_config(config_json(model)), parameters).parameters
    assert kept.embedding is parameters["embed_tokens.weight"]
    assert kept.head is kept.embedding
    assert kept.norm is parameters["norm.weight"]
    for index, layer in enumerate(kept.layers):
        name = f"layers.{index}"
        assert layer.input_norm is parameters[f"{name}.input_layernorm.weight"]
        assert layer.post_attention_norm is parameters[f"{name}.post_attention_layernorm.weight"]
        assert layer.qkv.weight is parameters[f"{name}.qkv_proj.weight"]
        assert layer.qkv.bias is parameters[f"{name}.qkv_proj.bias"]
        assert layer.output.weight is parameters[f"{name}.o_proj.weight"]
        assert layer.gate_up.weight is parameters[f"{name}.gate_up_proj.weight"]
        assert layer.down.weight is parameters[f"{name}.down_proj.weight"]


def test_the_norms_of_heads_are_those_that_are_given() -> None:
    model = make_tiny("qwen3")
    parameters = parameters_of(model)
    kept = DecoderModel(read_config(config_json(model)), parameters).parameters
    for index, layer in enumerate(kept.layers):
        assert layer.query_norm is parameters[f"layers.{index}.q_norm.weight"]
        assert layer.key_norm is parameters[f"layers.{index}.k_norm.weight"]


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.2.qkv_proj.bias", "lm_head.weight"])
def test_a_missing_parameter_is_named(name: str) -> None:
    model = make_tiny("qwen2")
    parameters = parameters_of(model)
    del parameters[name]
    with pytest.raises(MissingParameter, match=name):
        DecoderModel(read_config(config_json(model)), parameters)


@pytest.mark.parametrize("wrong", [torch.zeros(65), torch.zeros(64, dtype=torch.bfloat16)])
def test_a_parameter_of_another_shape_or_dtype_is_named(wrong: torch.Tensor) -> None:
    model = make_tiny("llama")
    parameters = {**parameters_of(model), "layers.1.input_layernorm.weight": wrong}
    with pytest.raises(MissingParameter, match=r"layers\.1\.input_layernorm\.weight"):
        DecoderModel(read_config(config_json(model)), parameters)
