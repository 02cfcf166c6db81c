"""tekken.json, in which Mistral publishes vocabularies: read and proved. No tokenizer is built here.

Format: https://github.com/mistralai/mistral-common, tokens/tokenizers/tekken.py. Special tokens have the first ids, the
vocabulary's ranks count on after them.
"""

import binascii
import codecs
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.text.tokenizer_error import TokenizerError

TEKKEN_FILE = "tekken.json"
_REMEDY = "Add a tokenizer.json (transformers' save_pretrained writes it) or name another tokenizer with --tokenizer-path."
_MOST_SPECIAL_TOKENS = 1 << 16
_NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int | None = None
    default_num_special_tokens: int | None = None


class _Entry(msgspec.Struct):
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _Document(msgspec.Struct):
    config: _Config
    vocab: list[_Entry]
    special_tokens: list[_Special] | None = None


@dataclass(frozen=True, slots=True)
class Tekken:
    """A vocabulary.

    Attributes:
        pattern: what is cut out of a text before tokens are looked for in it.
        special: the special tokens, in the order of their ids, which are the first.
        ranks: token → rank, counted from 0.
    """

    pattern: str
    special: tuple[str, ...]
    ranks: Mapping[bytes, int]

    @property
    def named_tokens(self) -> dict[str, str]:
        """Those of the usual names that it has."""
        return {name: token for name, token in _NAMED.items() if token in self.special}


def read_tekken(content: bytes) -> Tekken:
    """Read the file. Raises TokenizerError where it is malformed, or too old to tell its special tokens."""
    try:
        document = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=_Document)
        named = document.special_tokens
        if named is None:
            raise TokenizerError(
                f"{TEKKEN_FILE} is of an old version that does not tell its special tokens.", remedy=_REMEDY
            )
        special = _special_tokens(named, document.config.default_num_special_tokens)
        size = document.config.default_vocab_size
        entries = document.vocab if size is None else document.vocab[: max(0, size - len(special))]
        ranks = {b64decode(entry.token_bytes, validate=True): rank for rank, entry in enumerate(entries)}
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise TokenizerError(
            f"{TEKKEN_FILE} is malformed: {error}.", remedy="Upload the model's file again."
        ) from error
    return Tekken(document.config.pattern, special, ranks)


def _special_tokens(named: list[_Special], count: int | None) -> tuple[str, ...]:
    """Those that have names, then fillers up to the count. Raises ValueError."""
    by_rank = sorted((token.rank, token.token_str) for token in named)
    if [rank for rank, _ in by_rank] != list(range(len(by_rank))):
        raise ValueError("the ranks of its special tokens have gaps or doubles")
    total = len(by_rank) if count is None else count
    if not len(by_rank) <= total <= _MOST_SPECIAL_TOKENS:
        raise ValueError(f"it counts {total} special tokens and names {len(by_rank)}")
    fillers = (f"<SPECIAL_{number}>" for number in range(len(by_rank), total))
    special = (*(token for _, token in by_rank), *fillers)
    if len(set(special)) != len(special):
        raise ValueError("a special token stands twice")
    return special
