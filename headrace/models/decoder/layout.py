"""Which checkpoint tensor fills which parameter of a Llama-shaped decoder. No torch.

q, k and v lie in one parameter, gate and up in another: one product each instead of three and two. Names of
checkpoint tensors are those that transformers writes for the Llama family and its relatives.
"""

import re

from headrace.models.decoder.config import HEAD_WEIGHT, DecoderConfig
from headrace.models.layout import Layout, ParameterSpec, SourceTensor

EMBEDDING = "embed_tokens.weight"
ROTARY_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"


def decoder_layout(config: DecoderConfig) -> Layout:
    """The whole model, in load order: layers, an untied embedding, final norm, head."""
    vocabulary = (config.vocab_size, config.hidden_size)
    table = config.num_layers
    last = head_group(config)
    parameters = [spec for index in range(config.num_layers) for spec in _layer(config, index)]
    norm = _single("norm.weight", "model.norm.weight", (config.hidden_size,), last)
    embedding = _single(EMBEDDING, config.embedding_tensor, vocabulary, table)
    ignored = [ROTARY_BUFFERS]
    if config.tie_word_embeddings:
        parameters += [norm, embedding]
        ignored.append(re.escape(HEAD_WEIGHT))
    else:
        parameters += [embedding, norm, _single("lm_head.weight", HEAD_WEIGHT, vocabulary, last)]
    return Layout(parameters=tuple(parameters), embedding=EMBEDDING, ignored=tuple(ignored))


def head_group(config: DecoderConfig) -> int:
    """The last group: final norm and head."""
    return config.num_layers + (0 if config.tie_word_embeddings else 1)


def _layer(config: DecoderConfig, index: int) -> list[ParameterSpec]:
    """One decoder layer, in the order in which the forward pass uses it."""
    name, source, group = f"layers.{index}", f"model.layers.{index}", index
    hidden, inner = config.hidden_size, config.intermediate_size
    query, shared = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = f"{source}.self_attn"
    mlp = f"{source}.mlp"
    return [
        _single(f"{name}.input_layernorm.weight", f"{source}.input_layernorm.weight", (hidden,), group),
        *_linear(
            f"{name}.qkv_proj",
            (
                (f"{attention}.q_proj", query),
                (f"{attention}.k_proj", shared),
                (f"{attention}.v_proj", shared),
            ),
            hidden,
            config.attention_bias,
            group,
        ),
        *_head_norms(config, name, attention, group),
        *_linear(f"{name}.o_proj", ((f"{attention}.o_proj", hidden),), query, config.output_bias, group),
        _single(
            f"{name}.post_attention_layernorm.weight",
            f"{source}.post_attention_layernorm.weight",
            (hidden,),
            group,
        ),
        *_linear(
            f"{name}.gate_up_proj",
            ((f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)),
            hidden,
            config.mlp_bias,
            group,
        ),
        *_linear(f"{name}.down_proj", ((f"{mlp}.down_proj", hidden),), inner, config.mlp_bias, group),
    ]


def _head_norms(config: DecoderConfig, name: str, attention: str, group: int) -> list[ParameterSpec]:
    """What each head of q and k is normed with, where the family has it."""
    norms = ("q_norm.weight", "k_norm.weight") if config.query_key_norm else ()
    return [_single(f"{name}.{norm}", f"{attention}.{norm}", (config.head_dim,), group) for norm in norms]


def _linear(
    name: str, sources: tuple[tuple[str, int], ...], columns: int, bias: bool, group: int
) -> list[ParameterSpec]:
    """A projection whose output rows are those of `sources` (module name, rows), one under another."""
    rows = sum(count for _, count in sources)
    weights = tuple(SourceTensor(f"{source}.weight", (count, columns)) for source, count in sources)
    specs = [ParameterSpec(f"{name}.weight", (rows, columns), weights, group)]
    if bias:
        biases = tuple(SourceTensor(f"{source}.bias", (count,)) for source, count in sources)
        specs.append(ParameterSpec(f"{name}.bias", (rows,), biases, group))
    return specs


def _single(name: str, source: str, shape: tuple[int, ...], group: int) -> ParameterSpec:
    return ParameterSpec(name, shape, (SourceTensor(source, shape),), group)
