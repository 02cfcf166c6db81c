"""What the small JSON files beside tokenizer.json say: special tokens, added tokens, chat template.

The conventions are those of transformers 5 (PreTrainedTokenizerBase._from_pretrained).
"""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.text.sentencepiece_model import SENTENCEPIECE_FILE, read_sentencepiece
from headrace.text.tekken_file import TEKKEN_FILE, read_tekken
from headrace.text.tiktoken_families import family_of, find_tiktoken
from headrace.text.tokenizer_error import TokenizerError

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = "vocab.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"

# The token names that a class of transformers has when no file gives them; a null in a file is not overruled.
_CLASS_DEFAULTS = {
    "GemmaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "GPT2Tokenizer": dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "Qwen2Tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
}


@dataclass(frozen=True, slots=True)
class AddedTokenSpec:
    """A token that is matched in the text before the vocabulary is asked; fields as in `tokenizers`.

    `token_id` is None where the files do not give it.
    """

    content: str
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """The settings that matter for text, whichever file they came from.

    Attributes:
        tokenizer_class: transformers' class name without "Fast", or "".
        named_tokens: bos_token, eos_token, ... → content; these are also a chat template's variables.
        special_tokens: the named and all further special ones.
        added_tokens: the files' list of added tokens in the order of their ids.
        added_tokens_are_listed: that list is the newer, complete one of tokenizer_config.json.
        add_prefix_space, legacy: SentencePiece settings that only some classes read.
        add_bos_token, add_eos_token: not for a tokenizer.json, whose post-processor alone decides.
        chat_template: as it stands in the file: text, a list of {name, template}, or None.
    """

    tokenizer_class: str
    named_tokens: dict[str, str]
    special_tokens: tuple[AddedTokenSpec, ...]
    added_tokens: tuple[AddedTokenSpec, ...]
    added_tokens_are_listed: bool
    add_prefix_space: bool | None
    legacy: bool | None
    add_bos_token: bool | None
    add_eos_token: bool | None
    chat_template: Any


def without_mark(content: bytes) -> bytes:
    """A file's content without the byte order mark that some editors write."""
    return content.removeprefix(codecs.BOM_UTF8)


def read_json_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The file's JSON object; {} where there is no such file. Raises TokenizerError if it is anything else."""
    content = files.get(name)
    if content is None:
        return {}
    try:
        value = msgspec.json.decode(without_mark(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(
            f"{name} is not valid JSON: {error}.", remedy="Upload the model's file again."
        ) from error
    if not isinstance(value, dict):
        raise TokenizerError(
            f"{name} holds a JSON {type(value).__name__}, not an object.",
            remedy="Upload the model's file again.",
        )
    return value


def read_tokenizer_config(files: Mapping[str, bytes]) -> TokenizerConfig:
    """Bring the tokenizer's small files together. Raises TokenizerError where one is malformed."""
    config = read_json_object(files, CONFIG_FILE)
    listed = "added_tokens_decoder" in config
    if not listed:
        # Older folders keep these apart; where the newer key stands, transformers does not look at the files.
        config |= {k: v for k, v in read_json_object(files, SPECIAL_TOKENS_MAP_FILE).items() if v is not None}
    tokenizer_class = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    config = _default_names(tokenizer_class, files) | config
    try:
        named = _named_tokens(config)
        specials = (*named.values(), *_further_special_tokens(config))
        if listed:
            added = _added_by_id(config["added_tokens_decoder"])
        else:
            contents = {token.content for token in specials}
            added = _added_by_content(read_json_object(files, ADDED_TOKENS_FILE), contents)
    except (TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(
            f"The special or added tokens in {CONFIG_FILE}, {SPECIAL_TOKENS_MAP_FILE} or {ADDED_TOKENS_FILE} "
            f"are malformed: {error}.",
            remedy="Upload the model's files again.",
        ) from error
    return TokenizerConfig(
        tokenizer_class=tokenizer_class,
        named_tokens={name: token.content for name, token in named.items()},
        special_tokens=specials,
        added_tokens=tuple(added),
        added_tokens_are_listed=listed,
        add_prefix_space=config.get("add_prefix_space"),
        legacy=config.get("legacy"),
        add_bos_token=config.get("add_bos_token"),
        add_eos_token=config.get("add_eos_token"),
        chat_template=config.get("chat_template"),
    )


def _default_names(tokenizer_class: str, files: Mapping[str, bytes]) -> dict[str, str]:
    """Names of tokens for which the small files need not give any, from the vocabulary."""
    content = files.get(TOKENIZER_FILE)
    if content is None and (name := find_tiktoken(files)) is not None:
        family = family_of(name, files[name], tokenizer_class)
        return {} if family is None else dict(family.named_tokens)
    if content is None and SENTENCEPIECE_FILE in files:
        return read_sentencepiece(files[SENTENCEPIECE_FILE], with_pieces=False).named_tokens
    if content is None and VOCABULARY_FILE not in files and TEKKEN_FILE in files:
        return read_tekken(files[TEKKEN_FILE]).named_tokens
    if content is None:
        content = files.get(VOCABULARY_FILE, b"")
    # Only those that the vocabulary has: a Llama 3 folder, say, often has Llama's class and none of its tokens.
    # Asked of the file's text, as parsing it a second time would cost up to a second.
    defaults = _CLASS_DEFAULTS.get(tokenizer_class, {})
    return {name: token for name, token in defaults.items() if f'"{token}"'.encode() in content}


def _special(token: object) -> AddedTokenSpec:
    """A special token is written as its text or as an object with its fields."""
    if isinstance(token, str):
        return AddedTokenSpec(token, special=True, normalized=False)
    return replace(_added(token), special=True)


def _added(token: Any) -> AddedTokenSpec:
    fields = {key: value for key, value in token.items() if key != "__type"}
    special = bool(fields.get("special", False))
    return msgspec.convert({"special": special, "normalized": not special, **fields}, AddedTokenSpec)


def _named_tokens(config: Mapping[str, Any]) -> dict[str, AddedTokenSpec]:
    """The standard names, any other *_token, and the groups of names that multimodal models keep."""
    groups = [{key: value for key, value in config.items() if key.endswith("_token")}]
    for key in ("model_specific_special_tokens", "extra_special_tokens"):
        if isinstance(config.get(key), dict):
            groups.append(config[key])
    # add_bos_token and its like end alike and are no tokens.
    return {
        name: _special(token)
        for group in groups
        for name, token in group.items()
        if isinstance(token, str | dict)
    }


def _further_special_tokens(config: Mapping[str, Any]) -> list[AddedTokenSpec]:
    further = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return [_special(token) for token in further] if isinstance(further, list) else []


def _added_by_id(decoder: Mapping[str, Any]) -> list[AddedTokenSpec]:
    """added_tokens_decoder: id (as text) → the token's fields."""
    by_id = sorted((int(token_id), token) for token_id, token in decoder.items())
    return [replace(_added(token), token_id=token_id) for token_id, token in by_id]


def _added_by_content(encoder: Mapping[str, Any], specials: set[str]) -> list[AddedTokenSpec]:
    """added_tokens.json: the token's text → id."""
    return [
        AddedTokenSpec(
            content, content in specials, normalized=content not in specials, token_id=int(token_id)
        )
        for content, token_id in sorted(encoder.items(), key=lambda item: int(item[1]))
    ]
