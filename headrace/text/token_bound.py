"""How few tokens a text can have, told from its length: what cannot fit is refused without being encoded.

Encoding takes seconds and gigabytes where a text has tens of megabytes. Each token covers some of the text, so the
text's bytes over those of the longest token are a lower bound, where three things hold, and none is claimed where
they do not: the normalizer shortens a text by a known factor at the most, nothing is dropped before the vocabulary is
asked (some pre-tokenizers drop white space; bytes that are in no token are not counted), and no token covers more than its own text (an unknown token may cover
any number of characters, an added token that strips any amount of white space).
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.text.pieces import byte_level_token

if TYPE_CHECKING:
    import tokenizers

# Unicode's normal forms make four bytes of UTF-8 into one at the most (mathematical letters), compositions included;
# ASCII they leave as it is.
_UNICODE_SHRINKS = 4
_UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_PRE_TOKENIZERS_THAT_KEEP_ALL = frozenset({"ByteLevel", "Metaspace", "Digits"})


@dataclass(frozen=True, slots=True)
class TokenBound:
    """Attributes:
    longest: bytes of normalized text that one token covers at the most.
    shrinks: the factor by which normalizing makes a text shorter at the most; ASCII stays as it is.
    dropped: bytes that are in no token and leave no trace.
    """

    longest: int
    shrinks: int
    dropped: bytes = b""

    def fewest_tokens(self, text: str) -> int:
        """Tokens that `text` has at the least, special tokens that are added to it not counted."""
        size = len(text.encode("utf-8", "surrogatepass").translate(None, self.dropped))
        return -(-size // (self.longest * (1 if text.isascii() else self.shrinks)))


def token_bound(backend: "tokenizers.Tokenizer") -> TokenBound | None:
    """The bound of a tokenizer; None where its parts allow none."""
    normalizers = _parts(backend.normalizer, "normalizers")
    shrinks = _shrinks(normalizers)
    pre_tokenizers = _parts(backend.pre_tokenizer, "pretokenizers")
    added = backend.get_added_tokens_decoder().values()
    if (
        shrinks is None
        or type(backend.model).__name__ != "BPE"
        or not all(_keeps_all(part) for part in pre_tokenizers)
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if any(part["type"] == "ByteLevel" for part in pre_tokenizers):
        dropped = bytes(byte for byte in range(256) if byte_level_token(bytes([byte])) not in vocabulary)
        longest = max(map(len, vocabulary), default=1)  # each character stands for a byte
    else:
        covered = backend.model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        dropped = b"" if covered else bytes(range(256))
        longest = max((len(token.encode()) for token in vocabulary), default=1)
    # Some vocabularies lack control characters and bytes of rare scripts; a normalizer could make such from others.
    if dropped and (normalizers or len(dropped) == 256):
        return None
    for token in added:
        normalized = (
            token.content if backend.normalizer is None else backend.normalizer.normalize_str(token.content)
        )
        longest = max(longest, len(token.content.encode()), len(normalized.encode()))
    return TokenBound(longest, shrinks, dropped)


def _parts(component: Any, key: str) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, those of a sequence one by one."""
    if component is None:
        return []
    # The library offers a component's settings only in its serialised form.
    return _flatten(json.loads(component.__getstate__()), key)


def _flatten(part: dict[str, Any], key: str) -> list[dict[str, Any]]:
    if part["type"] != "Sequence":
        return [part]
    return [inner for step in part[key] for inner in _flatten(step, key)]


def _shrinks(normalizers: list[dict[str, Any]]) -> int | None:
    factor = 1
    for part in normalizers:
        if part["type"] in _UNICODE_FORMS:
            factor *= _UNICODE_SHRINKS
        elif part["type"] == "Replace" and "String" in part["pattern"]:
            if len(part["content"].encode()) < len(part["pattern"]["String"].encode()):
                return None
        elif part["type"] != "Prepend":
            return None
    return factor


def _keeps_all(pre_tokenizer: dict[str, Any]) -> bool:
    kind = pre_tokenizer["type"]
    if kind in ("Split", "Punctuation"):
        return bool(pre_tokenizer["behavior"] != "Removed")
    return kind in _PRE_TOKENIZERS_THAT_KEEP_ALL
