"""Folders without tokenizer.json: small SentencePiece models and tiktoken vocabularies, trained here."""

import base64
import functools
import io
import json
from typing import Any

import sentencepiece
import tiktoken
from small_tokenizers import CORPUS, byte_level

from headrace.text.pieces import byte_level_bytes

_AS_IT_IS: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}

# Name → how it is trained. The first two are made as Llama's and Gemma's are.
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama_like": {"model_type": "bpe", "byte_fallback": True, **_AS_IT_IS},
    "gemma_like": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["\n\n", "\n\n\n", "<start_of_turn>", "  "],
        "bos_piece": "<bos>",
        "eos_piece": "<eos>",
        **_AS_IT_IS,
    },
    "composed_bpe": {"model_type": "bpe", "user_defined_symbols": ["<tool>"], "control_symbols": ["<ctl>"]},
    "unigram": {"model_type": "unigram", "byte_fallback": True, "bos_id": -1, **_AS_IT_IS},
    "composed_unigram": {"model_type": "unigram", "user_defined_symbols": ["<tool>"]},
}


@functools.cache
def sentencepiece_model(name: str) -> bytes:
    """The content of tokenizer.model."""
    return train(**SENTENCEPIECE[name])


def train(**settings: Any) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=written,
        **{
            "vocab_size": 420,
            "hard_vocab_limit": False,
            "character_coverage": 0.98,
            "minloglevel": 2,
            **settings,
        },
    )
    return written.getvalue()


@functools.cache
def sentencepiece_library(name: str) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(name))


def sentencepiece_files(name: str, settings: dict[str, Any] | None = None) -> dict[str, bytes]:
    files = {"tokenizer.model": sentencepiece_model(name)}
    if settings is not None:
        files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files


@functools.cache
def tiktoken_ranks() -> dict[bytes, int]:
    """Token → rank: the 256 bytes, what they were joined to, in that order, digits, and one that no pair leads to."""
    state = json.loads(byte_level().to_str())["model"]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [byte_level_bytes(left) + byte_level_bytes(right) for left, right in state["merges"]]
    tokens += [b"12", b"123", b" xyzzy"]
    return {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}


@functools.cache
def tiktoken_content() -> bytes:
    lines = [b"%s %d" % (base64.b64encode(token), rank) for token, rank in tiktoken_ranks().items()]
    return b"\n".join(lines) + b"\n"


@functools.cache
def tiktoken_library(pattern: str, special: tuple[str, ...]) -> tiktoken.Encoding:
    ranks = tiktoken_ranks()
    return tiktoken.Encoding(
        "small",
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens={token: len(ranks) + index for index, token in enumerate(special)},
    )
