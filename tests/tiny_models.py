"""Tiny random models of each family, as transformers builds them, and checkpoints of them on disk.

Random weights at transformers' usual spread give nearly equal logits, and then any rounding changes the best
token. These are spread wider, so that the best token stands out (`median_gap` measures by how much).
"""

import copy
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

from headrace.models.layout import Layout
from headrace.models.registry import layout_of

VOCAB_SIZE = 320
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
_SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def make_tiny(family: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A float32 model of a family with random weights; `overrides` are fields of its config.

    Every parameter is random, norms and biases too: one that is all ones or zeros would hide a mistake.
    """
    config_class, model_class = _FAMILIES[family]
    config = config_class(**{**_SMALL, **overrides})
    config.architectures = [model_class.__name__]
    model: PreTrainedModel = model_class(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * noise
        elif name.endswith("bias"):
            values = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            values = 0.5 * noise
        else:
            values = noise * 1.5 / parameter.shape[1] ** 0.5
        parameter.data.copy_(values)
    return model


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A copy of the model with its weights rounded to `dtype`."""
    converted: PreTrainedModel = copy.deepcopy(model)
    torch.nn.Module.to(converted, dtype=dtype)
    return converted


def median_gap(model: PreTrainedModel, tokens: int = 128, seed: int = 1) -> float:
    """Between the best and the second-best logit, over random tokens."""
    ids = random_ids(model, tokens, seed)
    with torch.inference_mode():
        best = model(torch.tensor([ids])).logits[0].float().topk(2).values
    return float((best[:, 0] - best[:, 1]).median())


def random_ids(model: PreTrainedModel, count: int, seed: int) -> list[int]:
    """`count` token ids of the model's vocabulary, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(model.config.vocab_size, (count,), generator=generator).tolist()
    return ids


def config_json(model: PreTrainedModel) -> dict[str, Any]:
    """What config.json holds for this model, its dtype included."""
    config: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return {**config, "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a checkpoint of this model holds: each tensor under its name, a tied head left out."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def fill(layout: Layout, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters by name, from checkpoint tensors by name, as the layout says."""
    return {
        spec.name: torch.cat([tensors[source.name] for source in spec.sources]) for spec in layout.parameters
    }


def parameters_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The running model's parameters for this transformers model, in its dtype."""
    return fill(layout_of(config_json(model)), checkpoint_tensors(model))


def save_checkpoint(model: PreTrainedModel, folder: Path, *, shards: int = 1) -> None:
    """config.json, generation_config.json, tokenizer files and safetensors (with an index if there are shards)."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config_json(model))
    end_ids = [_SPECIAL_IDS[END_OF_TEXT], _SPECIAL_IDS[IM_END]]
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": end_ids, "pad_token_id": 0, "do_sample": False},
    )
    _save_weights(checkpoint_tensors(model), folder, shards)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.config.max_position_embeddings,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _save_weights(tensors: Mapping[str, torch.Tensor], folder: Path, shards: int) -> None:
    names = sorted(tensors)
    if shards == 1:
        save_file({name: tensors[name].contiguous() for name in names}, folder / "model.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        # Every n-th tensor: what is fused into one parameter comes from several shards.
        held = names[shard::shards]
        save_file({name: tensors[name].contiguous() for name in held}, folder / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(held, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


_SPECIAL_IDS = {END_OF_TEXT: 0, IM_START: 1, IM_END: 2}


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of VOCAB_SIZE tokens: three special ones, all bytes, and merged letter pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = VOCAB_SIZE - len(_SPECIAL_IDS) - len(alphabet)
    pairs = [("Ġ", letter) for letter in string.ascii_lowercase]
    pairs += [(left, right) for left in "aeiourst" for right in "nrstlmd"]
    merges = pairs[:room]
    words = [*_SPECIAL_IDS, *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {word: index for index, word in enumerate(words)}
    assert len(vocabulary) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in _SPECIAL_IDS])
    return tokenizer


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
