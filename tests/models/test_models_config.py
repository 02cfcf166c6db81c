"""config.json is read as transformers reads it, or refused with a sentence that names the field."""

import math
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.models.decoder.config import DecoderConfig
from headrace.models.decoder.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    Scaling,
    YarnScaling,
)
from headrace.models.errors import InvalidConfig, UnsupportedModel
from headrace.models.registry import family_of, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
QWEN2: dict[str, Any] = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3: dict[str, Any] = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
MISTRAL: dict[str, Any] = {**LLAMA, "architectures": ["MistralForCausalLM"]}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
SCALED = RopeConfig(50000.0, Llama3Scaling(8.0, 1.0, 4.0, 256))


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def test_a_llama_config_is_read_field_by_field() -> None:
    assert read_config(LLAMA) == DecoderConfig(
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=320,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=50000.0),
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        query_key_norm=False,
        windows=(None, None),
        tie_word_embeddings=False,
        embedding_tensor="model.embed_tokens.weight",
        hidden_act="silu",
        max_position_embeddings=512,
        context_length=512,
        dtype="bfloat16",
        eos_token_ids=(2,),
    )


def test_qwen2_has_a_bias_on_query_key_and_value_only() -> None:
    config = read_config({**QWEN2, "attention_bias": False, "mlp_bias": True})
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == (True, False, False)


def test_a_llama_with_attention_bias_has_it_on_the_output_too() -> None:
    config = read_config({**LLAMA, "attention_bias": True})
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == (True, True, False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"head_dim": 24}, 24),
        ({"head_dim": None}, 16),
        ({"head_dim": 24, "hidden_size": 66}, 24),
    ],
)
def test_head_dim_is_derived_only_where_it_is_not_given(fields: dict[str, Any], expected: int) -> None:
    assert read_config({**LLAMA, **fields}).head_dim == expected


def test_without_key_value_heads_every_head_has_its_own() -> None:
    assert read_config(without(LLAMA, "num_key_value_heads")).num_kv_heads == 4


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7, (7,)), ([7, 9, 7], (7, 9)), ([[7], [9, [3]], None], (7, 9, 3)), (None, ()), (0, (0,)), ([], ())],
)
def test_all_end_of_sequence_ids_are_kept_once(value: object, expected: tuple[int, ...]) -> None:
    assert read_config({**LLAMA, "eos_token_id": value}).eos_token_ids == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": None}, None),
        ({"torch_dtype": "float32"}, "float32"),
    ],
)
def test_the_dtype_is_read_under_both_names(fields: dict[str, Any], expected: str | None) -> None:
    assert read_config({**LLAMA, **fields}).dtype == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope_scaling": None}, RopeConfig(50000.0)),
        ({"rope_scaling": {}}, RopeConfig(50000.0)),
        ({"rope_scaling": {"type": "default"}}, RopeConfig(50000.0)),
        ({"rope_theta": None}, RopeConfig(10000.0)),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, SCALED),
        ({"rope_scaling": {"type": "llama3", **LLAMA3}}, SCALED),
        ({"rope_scaling": {"rope_type": "llama3", "type": "yarn", **LLAMA3}}, SCALED),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 50000.0, **LLAMA3}, "rope_theta": 1.0},
            SCALED,
        ),
        ({"rope_parameters": {"rope_theta": 777.0}}, RopeConfig(777.0)),
        ({"rope_parameters": {"rope_type": "default"}}, RopeConfig(50000.0)),
        ({"rope_parameters": None}, RopeConfig(50000.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", **without(LLAMA3, "original_max_position_embeddings")}},
            RopeConfig(50000.0, Llama3Scaling(8.0, 1.0, 4.0, 512)),
        ),
    ],
)
def test_rotary_settings_are_read_in_every_spelling(fields: dict[str, Any], expected: RopeConfig) -> None:
    assert read_config({**LLAMA, **fields}).rope == expected


YARN = {"rope_type": "yarn", "factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2.5] * 8}


@pytest.mark.parametrize(
    ("settings", "beside", "expected"),
    [
        ({"type": "linear", "factor": 2}, {}, LinearScaling(2.0)),
        ({"rope_type": "dynamic", "factor": 2.5}, {}, DynamicScaling(2.5, 512)),
        (YARN, {}, YarnScaling(4.0, 512, 0.1 * math.log(4) + 1)),
        ({**YARN, "original_max_position_embeddings": 128}, {}, YarnScaling(4.0, 128, 0.1 * math.log(4) + 1)),
        (
            {**YARN, "factor": None, "original_max_position_embeddings": 256},
            {},
            YarnScaling(2.0, 256, 0.1 * math.log(2) + 1),
        ),
        (
            {**YARN, "original_max_position_embeddings": 256},
            {"original_max_position_embeddings": 128},
            YarnScaling(4.0, 128, 0.1 * math.log(4) + 1),
        ),
        ({**YARN, "factor": 1.0}, {}, YarnScaling(1.0, 512, 1.0)),
        (
            {
                **YARN,
                "attention_factor": 1,
                "mscale": 2.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 8,
                "truncate": False,
            },
            {},
            YarnScaling(4.0, 512, 1.0, beta_fast=8.0, truncate=False),
        ),
        ({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, {}, YarnScaling(4.0, 512, 1.0)),
        ({**YARN, "mscale": 0.7, "mscale_all_dim": 0}, {}, YarnScaling(4.0, 512, 0.1 * math.log(4) + 1)),
        (
            {**YARN, "beta_fast": None, "beta_slow": 2},
            {},
            YarnScaling(4.0, 512, 0.1 * math.log(4) + 1, beta_slow=2.0),
        ),
        (
            {**LONG, "original_max_position_embeddings": 128},
            {},
            LongRopeScaling((1.0,) * 8, (2.5,) * 8, 128, math.sqrt(1 + math.log(4) / math.log(128))),
        ),
        (
            {**LONG, "attention_factor": 1.25},
            {"original_max_position_embeddings": 256},
            LongRopeScaling((1.0,) * 8, (2.5,) * 8, 256, 1.25),
        ),
        (LONG, {}, LongRopeScaling((1.0,) * 8, (2.5,) * 8, 512, 1.0)),
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_each_scaling_is_read_with_the_defaults_of_transformers(
    name: str, settings: dict[str, Any], beside: dict[str, Any], expected: Scaling
) -> None:
    assert read_config({**LLAMA, name: settings, **beside}).rope == RopeConfig(50000.0, expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, 512),
        ({"rope_type": "llama3", **LLAMA3}, 512),
        ({**LONG, "original_max_position_embeddings": 128}, 512),
        ({"type": "linear", "factor": 3.0}, 1536),
        ({"type": "dynamic", "factor": 2.0}, 1024),
        # max_position_embeddings is the scaled length already.
        ({"type": "linear", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({**YARN, "original_max_position_embeddings": 128}, 512),
        # It is the original one, or one between.
        ({**YARN, "original_max_position_embeddings": 512}, 2048),
        ({**YARN, "original_max_position_embeddings": 400}, 1600),
        (YARN, 2048),
        ({**YARN, "original_max_position_embeddings": 64}, 512),
        ({"type": "linear", "factor": 1e300}, 1 << 31),
    ],
)
def test_the_context_is_what_the_scaling_carries_to_and_scaled_once(
    settings: dict[str, Any] | None, expected: int
) -> None:
    config = read_config({**LLAMA, "rope_scaling": settings})
    assert (config.max_position_embeddings, config.context_length) == (512, expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, (None, None)),
        ({**LLAMA, "sliding_window": 8}, (None, None)),  # a Llama has no such field
        ({**MISTRAL, "sliding_window": 8}, (8, 8)),
        ({**MISTRAL, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, (8, 8)),
        ({**MISTRAL, "sliding_window": None}, (None, None)),
        ({**MISTRAL, "sliding_window": None, "layer_types": ["full_attention"] * 2}, (None, None)),
        (MISTRAL, (4096, 4096)),
        (QWEN2, (None, None)),
        ({**QWEN2, "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0}, (None, None)),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, (8, 8)),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None, 8)),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 8}, (None, None)),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 0}, (4096, 4096)),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, (None, None)),
        (
            {
                **QWEN3,
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (8, None),
        ),
    ],
)
def test_the_layers_that_slide_are_known(config: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert read_config(config).windows == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MISTRAL, (False, False, False, False)),
        ({**MISTRAL, "attention_bias": True}, (False, False, False, False)),
        (QWEN3, (False, False, False, True)),
        ({**QWEN3, "attention_bias": True}, (True, True, False, True)),
    ],
)
def test_biases_and_head_norms_are_those_of_the_family(
    config: dict[str, Any], expected: tuple[bool, ...]
) -> None:
    read = read_config(config)
    assert (read.attention_bias, read.output_bias, read.mlp_bias, read.query_key_norm) == expected


def test_what_a_family_leaves_out_has_its_own_default() -> None:
    heads = {"hidden_size": 256, "num_attention_heads": 16}
    assert read_config({**without(MISTRAL, "num_key_value_heads"), **heads}).num_kv_heads == 8
    assert read_config({**MISTRAL, "num_key_value_heads": None}).num_kv_heads == 4
    assert read_config(QWEN3).head_dim == 128
    assert read_config({**QWEN3, "head_dim": 32}).head_dim == 32
    assert read_config(without(MISTRAL, "max_position_embeddings")).context_length == 131072


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("tied", "held", "expected"),
    [
        (True, {EMBEDDING}, (True, EMBEDDING)),
        (True, {EMBEDDING, HEAD}, (False, EMBEDDING)),
        (True, {HEAD}, (True, HEAD)),
        (False, {EMBEDDING, HEAD}, (False, EMBEDDING)),
        (False, {EMBEDDING}, (False, EMBEDDING)),
        (False, {HEAD}, (False, EMBEDDING)),
        (True, None, (True, EMBEDDING)),
    ],
)
def test_the_tensors_that_the_file_holds_decide_about_a_tied_head(
    tied: bool, held: set[str] | None, expected: tuple[bool, str]
) -> None:
    config = read_config({**LLAMA, "tie_word_embeddings": tied}, held)
    assert (config.tie_word_embeddings, config.embedding_tensor) == expected


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
            ("mrope", "yarn, longrope"),
        ),
        ({**LLAMA, "rope_parameters": {"rope_type": "proportional"}}, ("proportional", "rope_parameters")),
        ({**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ("full_attention",)),
        ({**LLAMA, "partial_rotary_factor": 0.5}, ("partial_rotary_factor",)),
        ({**LLAMA, "hidden_act": "gelu"}, ("'gelu'", "hidden_act", "silu")),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, ("quantization_config", "gptq")),
        ({**QWEN2, "layer_types": ["full_attention", "linear_attention"]}, ("linear_attention",)),
        ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}, ("sliding_attention",)),
        (
            {**MISTRAL, "sliding_window": None, "layer_types": ["sliding_attention"] * 2},
            ("sliding_attention", "null"),
        ),
        (
            {**MISTRAL, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            ("full_attention",),
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        read_config(config)
    for name in named:
        assert name in str(refusal.value)
    assert refusal.value.remedy.startswith("Supported:")


@pytest.mark.parametrize(
    "config",
    [
        {**QWEN2, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 1},
        {**QWEN2, "layer_types": ["full_attention", "full_attention"]},
        {**LLAMA, "quantization_config": None},
        {**LLAMA, "partial_rotary_factor": 1.0},
    ],
)
def test_a_switch_that_is_off_is_not_refused(config: dict[str, Any]) -> None:
    assert read_config(config).num_layers == 2


@pytest.mark.parametrize(
    "name", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
@pytest.mark.parametrize("value", ["missing", None, "64", 64.0, 0, -1, True, [64], 1 << 40])
def test_a_missing_or_impossible_size_is_named(name: str, value: object) -> None:
    config = without(LLAMA, name) if value == "missing" else {**LLAMA, name: value}
    with pytest.raises(InvalidConfig, match=f"'{name}'") as refusal:
        read_config(config)
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_key_value_heads": 3}, "'num_key_value_heads' 3"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "'hidden_size' 64"),
        ({"head_dim": 17}, "'head_dim' must be even"),
        ({"hidden_size": 60}, "'head_dim' must be even"),
        ({"rms_norm_eps": "1e-5"}, "'rms_norm_eps'"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps'"),
        ({"rope_theta": -1.0}, "'rope_theta'"),
        ({"rope_theta": 10**400}, "'rope_theta'"),
        ({"rope_scaling": {"type": "linear"}}, "'factor'"),
        ({"rope_scaling": {"type": "linear", "factor": True}}, "'factor'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": -1}}, "'beta_fast'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": "no"}}, "'truncate'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "rope_theta": 1}}, "'rope_theta'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2}, "2 wide"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}, "'long_factor'"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 7}}, "a list of 8 positive numbers"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [0.0] * 8}}, "'short_factor'"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": "yes"}, "'use_sliding_window'"),
        ({"architectures": ["Qwen2ForCausalLM"], "max_window_layers": -1}, "'max_window_layers'"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]},
            "'layer_types' 1 entries",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 2},
            "'use_sliding_window'",
        ),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "'sliding_window'"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": [8]}, "'sliding_window'"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": 3}, "'layer_types'"),
        ({"rope_scaling": "llama3"}, "'rope_scaling'"),
        ({"rope_scaling": {"factor": 2.0}}, "'rope_scaling'"),
        ({"rope_scaling": {"rope_type": "llama3", **without(LLAMA3, "factor")}}, "'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings'"),
        ({"attention_bias": 1}, "'attention_bias'"),
        ({"eos_token_id": "</s>"}, "'eos_token_id'"),
        ({"eos_token_id": [2, -1]}, "'eos_token_id'"),
        ({"eos_token_id": True}, "'eos_token_id'"),
        ({"eos_token_id": [2.0]}, "'eos_token_id'"),
        ({"hidden_act": 3}, "'hidden_act'"),
        ({"num_hidden_layers": 100_000_000}, "'num_hidden_layers'"),
    ],
)
def test_a_field_that_no_model_can_have_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        read_config({**LLAMA, **fields})
    assert named in str(refusal.value)


@pytest.mark.parametrize("architectures", [["GPT2LMHeadModel"], [], None, "GPT2LMHeadModel", [{}], 3])
def test_another_architecture_is_refused_with_the_supported_ones(architectures: object) -> None:
    with pytest.raises(HeadraceError, match="LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3"):
        family_of({**LLAMA, "architectures": architectures})
