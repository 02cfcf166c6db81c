"""Checkpoints that can be served, made once in a folder and kept: SmolLM2, and a larger random one of its kind."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.demo.model import prepare_smollm2
from headrace.demo.safetensors_file import PendingTensor, write_safetensors

SMALL, LARGE = "smollm2-135m-instruct", "llama-random-0.6gb"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
# Twice SmolLM2's width in three fifths of its layers: 311 M parameters, the embedding among them.
_SHAPE = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_attention_heads": 18,
    "num_key_value_heads": 6,
    "num_hidden_layers": 18,
}
_SPREAD = 0.02


def small_model(folder: Path) -> Path:
    """SmolLM2-135M-Instruct, 0.27 GB, in a folder of that name below `folder`."""
    return _made(folder / SMALL, prepare_smollm2)


def large_model(folder: Path) -> Path:
    """A Llama of 0.62 GB with random weights and SmolLM2's tokenizer, in a folder of that name below `folder`."""
    small = small_model(folder)
    return _made(folder / LARGE, partial(_write_large, small))


def _made(folder: Path, make: Any) -> Path:
    """`make(folder)`, unless it is there already; one that was interrupted is made again."""
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.rename(folder)
    return folder


def _write_large(small: Path, folder: Path) -> None:
    config: dict[str, Any] = json.loads((small / "config.json").read_text()) | _SHAPE
    for name in _TOKENIZER_FILES:
        shutil.copy(small / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(folder / "model.safetensors", _tensors(config))


def _tensors(config: dict[str, Any]) -> list[PendingTensor]:
    """The tensors of a Llama whose head is its embedding; the same at every call."""
    random = np.random.default_rng(0)

    def noise(*shape: int) -> npt.NDArray[np.float32]:
        return random.standard_normal(shape, np.float32) * np.float32(_SPREAD)

    def ones(*shape: int) -> npt.NDArray[np.float32]:
        return np.ones(shape, np.float32)

    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    return [
        PendingTensor(name, shape, partial(ones if len(shape) == 1 else noise, *shape))
        for name, shape in shapes.items()
    ]
