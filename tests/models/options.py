"""Every option of the families, as fields of tiny configs: name → (family, fields).

Contexts in the tests are 70 tokens of prompt and 24 of answer, so lengths and windows are set around that.
"""

from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.tiny_models import make_tiny, median_gap

PROMPT, ANSWER = 70, 24
Fields = dict[str, Any]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EVERY_FAMILY: dict[str, Fields] = {
    "gqa": {},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
}


def rope(kind: str, **settings: Any) -> Fields:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **settings}}


SHORT = [1.0 + 0.05 * pair for pair in range(8)]
LONG = [1.0 + 0.7 * pair for pair in range(8)]
ROPES: dict[str, Fields] = {
    "other-theta": rope("default"),
    "linear": rope("linear", factor=3.0),
    "dynamic": {**rope("dynamic", factor=2.0), "max_position_embeddings": 32},
    "dynamic-from-the-80th-token-on": {**rope("dynamic", factor=4.0), "max_position_embeddings": 80},
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "yarn-of-every-setting": rope(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=32,
        attention_factor=1.3,
        beta_fast=4.0,
        beta_slow=0.5,
        truncate=False,
    ),
    "yarn-mscale": rope(
        "yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.2, mscale_all_dim=0.4
    ),
    "longrope": rope(
        "longrope", short_factor=SHORT, long_factor=LONG, factor=4.0, original_max_position_embeddings=32
    ),
    "longrope-from-the-80th-token-on": rope(
        "longrope",
        short_factor=SHORT,
        long_factor=LONG,
        original_max_position_embeddings=80,
        attention_factor=1.1,
    ),
}
LLAMA: dict[str, Fields] = {
    **ROPES,
    "mha": {"num_key_value_heads": 4},
    "one-layer": {"num_hidden_layers": 1},
    "head-dim-10": {"head_dim": 10},
    "head-dim-80": {"head_dim": 80},
    "head-dim-96": {"head_dim": 96, "num_key_value_heads": 1},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "everything": {
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 24,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3_ROPE,
    },
}
SLIDING: dict[str, tuple[str, Fields]] = {
    "mistral-window-16": ("mistral", {"sliding_window": 16}),
    "mistral-window-2": ("mistral", {"sliding_window": 2}),
    "mistral-window-of-the-prompt": ("mistral", {"sliding_window": PROMPT}),
    "mistral-window-yarn": ("mistral", {"sliding_window": 20, **ROPES["yarn"]}),
    "qwen2-window-from-layer-1": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
    "qwen2-window-everywhere": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 0, "num_key_value_heads": 1},
    ),
    "qwen3-window-by-layer": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
OPTIONS: dict[str, tuple[str, Fields]] = {
    **{
        f"{family}-{name}": (family, fields)
        for family in ("llama", "mistral", "qwen2", "qwen3")
        for name, fields in EVERY_FAMILY.items()
    },
    **{f"llama-{name}": ("llama", fields) for name, fields in LLAMA.items()},
    **SLIDING,
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2-yarn": ("qwen2", ROPES["yarn"]),
    "qwen2-head-dim-24": ("qwen2", {"head_dim": 24}),
    "qwen3-attention-bias": ("qwen3", {"attention_bias": True}),
    "qwen3-head-dim-24-yarn": ("qwen3", {"head_dim": 24, **ROPES["yarn"]}),
}
each_option = pytest.mark.parametrize(("family", "fields"), OPTIONS.values(), ids=OPTIONS.keys())


def distinct(family: str, fields: Fields) -> PreTrainedModel:
    """A tiny model whose best token stands out, so that equal tokens are no accident and no matter of rounding."""
    model = make_tiny(family, **fields)
    assert median_gap(model) > 0.05
    return model
