"""The shape and the options of a Llama-shaped decoder, read from config.json. No torch.

What all families share is read here; a family's own layout.py adds what config.json leaves unsaid.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.models.decoder.fields import (
    read_flag,
    read_integer,
    read_number,
    read_object,
    read_text,
    read_token_ids,
)
from headrace.models.decoder.rope import RopeConfig
from headrace.models.decoder.rope_fields import longest_context, read_rope
from headrace.models.decoder.windows import no_windows
from headrace.models.errors import InvalidConfig, UnsupportedModel

EMBEDDING_WEIGHT, HEAD_WEIGHT = "model.embed_tokens.weight", "lm_head.weight"
SUPPORTED_ACTIVATIONS = ("silu",)
# A layout has a dozen entries a layer: a bound, so that a broken config.json cannot take all memory.
MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder of pre-norm blocks: RMSNorm, grouped-query attention with rotary positions, gated MLP.

    Attributes:
        hidden_size: width of the residual stream.
        intermediate_size: width of the MLP.
        num_heads, num_kv_heads: query heads, and the key/value heads that they share; the first is a multiple
            of the second.
        head_dim: width of a head, even; num_heads * head_dim need not be hidden_size.
        vocab_size: rows of the embedding and of the head.
        attention_bias: q, k and v projections have a bias.
        output_bias: the attention's output projection has one.
        mlp_bias: the MLP's three projections have one.
        query_key_norm: each head of q and k is normed (RMSNorm over head_dim) before it is turned.
        windows: for each layer, how many of the last tokens a token sees, itself included; None for all.
        tie_word_embeddings: the head is the embedding.
        embedding_tensor: the checkpoint tensor that holds the embedding.
        max_position_embeddings: as config.json gives it, in tokens; see context_length.
        context_length: the longest context, in tokens, that the model may be served with.
        dtype: the weights' type as config.json writes it ("bfloat16"), or None.
        eos_token_ids: end-of-sequence ids that config.json names.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    query_key_norm: bool
    windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    embedding_tensor: str
    hidden_act: str
    max_position_embeddings: int
    context_length: int
    dtype: str | None
    eos_token_ids: tuple[int, ...]


def read_decoder_config(
    config: Mapping[str, Any],
    *,
    attention_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    default_max_position_embeddings: int,
    windows: Callable[[Mapping[str, Any], int], tuple[int | None, ...]] = no_windows,
    query_key_norm: bool = False,
    default_kv_heads: int | None = None,
    default_head_dim: int | None = None,
) -> DecoderConfig:
    """A parsed config.json, with the family's answers to what the fields shared by all families do not say.

    `windows` is one of the readers in windows.py: it takes config.json and the number of layers. A default of None
    means one key/value head for each query head, and heads of hidden_size / heads.

    Raises InvalidConfig, naming the field, for what is missing or impossible, and UnsupportedModel for what is
    not computed here.
    """
    _refuse_quantized(config)
    hidden_size = read_integer(config, "hidden_size")
    num_heads = read_integer(config, "num_attention_heads")
    num_kv_heads = _read_kv_heads(config, num_heads, default_kv_heads)
    if num_heads % num_kv_heads:
        raise InvalidConfig(
            f"config.json gives 'num_attention_heads' {num_heads}, which is not a multiple of "
            f"'num_key_value_heads' {num_kv_heads}.",
            remedy="Take the config.json that belongs to these weights.",
        )
    num_layers = read_integer(config, "num_hidden_layers", largest=MOST_LAYERS)
    head_dim = _read_head_dim(config, hidden_size, num_heads, default_head_dim)
    max_position_embeddings = read_integer(config, "max_position_embeddings", default_max_position_embeddings)
    rope = read_rope(config, max_position_embeddings, head_dim)
    return DecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=read_integer(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=read_integer(config, "vocab_size"),
        rms_norm_eps=read_number(config, "rms_norm_eps", 1e-6),
        rope=rope,
        attention_bias=attention_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        query_key_norm=query_key_norm,
        windows=windows(config, num_layers),
        tie_word_embeddings=read_flag(config, "tie_word_embeddings", False),
        embedding_tensor=EMBEDDING_WEIGHT,
        hidden_act=_read_activation(config),
        max_position_embeddings=max_position_embeddings,
        context_length=longest_context(config, rope, max_position_embeddings),
        dtype=read_text(config, "dtype") or read_text(config, "torch_dtype"),
        eos_token_ids=read_token_ids(config, "eos_token_id"),
    )


def as_held(config: DecoderConfig, held: Collection[str]) -> DecoderConfig:
    """The same model with the embedding and the head that the checkpoint has, given the names of its tensors.

    As in transformers: a head of its own in the file counts, whatever config.json says of tying, and where the
    two are tied, either name may hold both.
    """
    if not config.tie_word_embeddings or HEAD_WEIGHT not in held:
        return config
    if EMBEDDING_WEIGHT in held:
        return replace(config, tie_word_embeddings=False)
    return replace(config, embedding_tensor=HEAD_WEIGHT)


def _read_kv_heads(config: Mapping[str, Any], num_heads: int, default: int | None) -> int:
    absent = "num_key_value_heads" not in config
    return read_integer(config, "num_key_value_heads", default if absent and default else num_heads)


def _read_head_dim(config: Mapping[str, Any], hidden_size: int, num_heads: int, default: int | None) -> int:
    given = config.get("head_dim") is not None or default is not None
    if not given and hidden_size % num_heads:
        raise InvalidConfig(
            f"config.json gives no 'head_dim', and 'hidden_size' {hidden_size} is not a multiple of "
            f"'num_attention_heads' {num_heads}.",
            remedy="Take the config.json that belongs to these weights.",
        )
    head_dim = read_integer(config, "head_dim", default or max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise InvalidConfig(
            f"config.json makes heads {head_dim} wide ({'head_dim' if given else 'hidden_size / heads'}), but "
            "rotary embedding pairs the two halves of a head, so 'head_dim' must be even.",
            remedy="Take the config.json that belongs to these weights.",
        )
    return head_dim


def _read_activation(config: Mapping[str, Any]) -> str:
    activation = read_text(config, "hidden_act") or "silu"
    if activation not in SUPPORTED_ACTIVATIONS:
        raise UnsupportedModel(
            f"config.json asks for the activation {activation!r} in 'hidden_act', which Headrace does not compute.",
            remedy=f"Supported: {', '.join(SUPPORTED_ACTIVATIONS)}.",
        )
    return activation


def _refuse_quantized(config: Mapping[str, Any]) -> None:
    quantization = read_object(config, "quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unnamed")
        raise UnsupportedModel(
            f"config.json says that the weights are quantized (quantization_config, method {method!r}), "
            "which Headrace does not read.",
            remedy="Supported: unquantized bfloat16, float16 or float32 weights.",
        )
