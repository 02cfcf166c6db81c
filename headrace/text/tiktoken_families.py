"""The model families that are published as tiktoken vocabularies, with what their own programs say of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

TIKTOKEN_SUFFIX = ".tiktoken"
TIKTOKEN_NAMES = ("tiktoken.model", "tokenizer.model")

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        pattern: what is cut out of a text before tokens are looked for in it.
        nfc: whether text is brought to Unicode's composed form first.
        special_tokens: those that follow the vocabulary, in the order of their ids.
        named_tokens: bos_token and eos_token; a model with the former begins every text with it.
    """

    pattern: str
    nfc: bool
    special_tokens: tuple[str, ...]
    named_tokens: Mapping[str, str]


def _reserved(start: int, stop: int) -> tuple[str, ...]:
    return tuple(f"<|reserved_special_token_{number}|>" for number in range(start, stop))


# https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py
LLAMA3 = Family(
    pattern=_WORDS % r"\p{N}{1,3}",
    nfc=False,
    special_tokens=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *_reserved(0, 4),
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|reserved_special_token_4|>",
        "<|eot_id|>",
        *_reserved(5, 251),
    ),
    named_tokens={"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
)
# https://huggingface.co/Qwen/Qwen-7B/blob/main/tokenization_qwen.py
QWEN = Family(
    pattern=_WORDS % r"\p{N}",
    nfc=True,
    special_tokens=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *(f"<|extra_{number}|>" for number in range(205)),
    ),
    named_tokens={"eos_token": "<|endoftext|>"},
)

_LLAMA3_TOKENS = 128_000
# transformers reads a tiktoken vocabulary of these classes with Llama 3's pattern.
_CLASSES = {
    "QWenTokenizer": QWEN,
    "LlamaTokenizer": LLAMA3,
    "PreTrainedTokenizer": LLAMA3,
    "TokenizersBackend": LLAMA3,
}


def find_tiktoken(files: Mapping[str, bytes]) -> str | None:
    """The name of the file that is a tiktoken vocabulary, if one is."""
    for name, content in sorted(files.items()):
        if name.endswith(TIKTOKEN_SUFFIX):
            return name
        if name in TIKTOKEN_NAMES and _FIRST_LINE.match(content):
            return name
    return None


def family_of(name: str, content: bytes, tokenizer_class: str) -> Family | None:
    """The family of a tiktoken vocabulary, None for one that is not known."""
    if name == "qwen.tiktoken":
        return QWEN
    if not tokenizer_class and content.rstrip().count(b"\n") + 1 == _LLAMA3_TOKENS:
        return LLAMA3
    return _CLASSES.get(tokenizer_class)
