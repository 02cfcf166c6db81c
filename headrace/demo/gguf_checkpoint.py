"""From a Llama-shaped GGUF file to the Hugging Face form: dequantized tensors and config.json.

GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from headrace.demo.safetensors_file import PendingTensor

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def field(reader: GGUFReader, name: str) -> Any:
    """The value of a metadata field; KeyError if the file lacks it."""
    return reader.fields[name].contents()


def checkpoint_name(gguf_name: str) -> str:
    """llama.cpp's tensor name → Hugging Face's."""
    if gguf_name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[gguf_name]
    _, layer, rest = gguf_name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER_NAMES[rest]}"


def pending_tensors(reader: GGUFReader) -> list[PendingTensor]:
    """Every tensor, dequantized when it is written."""
    return [_pending(tensor, _rotary_heads(reader, tensor.name)) for tensor in reader.tensors]


def unpermute(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's order of q and k rows.

    Its rotary pairs neighbouring rows (0, 1), (2, 3), ...; Hugging Face's pairs row i with i + head_dim / 2.
    """
    head_dim = rows.shape[0] // heads
    pairs = rows.reshape(heads, head_dim // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def model_config(reader: GGUFReader) -> dict[str, Any]:
    """config.json for transformers' LlamaForCausalLM."""

    def llama(name: str) -> Any:
        return field(reader, f"llama.{name}")

    rope_theta = llama("rope.freq_base")
    heads = llama("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        "head_dim": llama("embedding_length") // heads,
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "initializer_range": 0.02,
        "intermediate_size": llama("feed_forward_length"),
        "max_position_embeddings": llama("context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": llama("block_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        # A float32 in the file: its shortest decimal is what was meant (1e-05).
        "rms_norm_eps": float(str(np.float32(llama("attention.layer_norm_rms_epsilon")))),
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": llama("vocab_size"),
    }


def _rotary_heads(reader: GGUFReader, tensor_name: str) -> int:
    """Heads of a tensor whose rows llama.cpp permuted; 0 for all others."""
    if tensor_name.endswith(".attn_q.weight"):
        return int(field(reader, "llama.attention.head_count"))
    if tensor_name.endswith(".attn_k.weight"):
        return int(field(reader, "llama.attention.head_count_kv"))
    return 0


def _pending(tensor: ReaderTensor, rotary_heads: int) -> PendingTensor:
    def values() -> npt.NDArray[np.float32]:
        rows = dequantize(tensor.data, tensor.tensor_type)
        return unpermute(rows, rotary_heads) if rotary_heads else rows

    # GGUF counts dimensions from the innermost.
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return PendingTensor(checkpoint_name(tensor.name), shape, values)
