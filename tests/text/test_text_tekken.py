"""Mistral's tekken.json, beside transformers' own conversion of it."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.integrations.mistral.tokenizer import MistralConverter

from headrace.text.tekken_file import read_tekken
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_error import TokenizerError

# That of Mistral-Nemo's file.
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
WORDS = [
    b"th",
    b"he",
    b"the",
    b" t",
    b" the",
    b"in",
    b"ing",
    b"\xc3\xa4",
    b"\n\n",
    b"  ",
    b"unused",
    b"dropped",
]
TEXTS = [
    "",
    "the thing in the Thing",
    "[INST] What is in it? [/INST]</s><s>",
    "ä ünï 日本語 😀  \n\n  x",
    "12345 3.14 A/b\r\n\tEND",
    "<SPECIAL_7><s",
]


def document() -> dict[str, Any]:
    tokens = [bytes([byte]) for byte in range(256)] + WORDS
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": 10 + len(tokens) - 1,
            "default_num_special_tokens": 10,
            "version": "v7",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIAL)
        ],
    }


def tokenizer_of(content: dict[str, Any], **files: bytes) -> Tokenizer:
    return Tokenizer.from_files({"tekken.json": json.dumps(content).encode(), **files})


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers_conversion(text: str, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(document()))
    reference = MistralConverter(str(tmp_path / "tekken.json")).converted()
    tokenizer = tokenizer_of(document())
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.vocab_size == reference.get_vocab_size()


def test_special_tokens_have_the_first_ids_and_the_vocabulary_follows() -> None:
    tokenizer = tokenizer_of(document())
    assert tokenizer.encode("[INST]a", add_special_tokens=False) == [3, 10 + ord("a")]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_id) == ("<s>", "</s>", 2)
    assert tokenizer.special_ids == frozenset(range(10))


def test_a_text_begins_with_bos_unless_the_files_say_otherwise() -> None:
    assert tokenizer_of(document()).encode("a") == [1, 10 + ord("a")]
    config = b'{"add_bos_token": false}'
    assert tokenizer_of(document(), **{"tokenizer_config.json": config}).encode("a") == [10 + ord("a")]


def test_what_lies_beyond_the_vocabularys_size_is_no_token() -> None:
    assert b"dropped" not in read_tekken(json.dumps(document()).encode()).ranks


def test_pieces_stream_as_text() -> None:
    tokenizer = tokenizer_of(document())
    ids = tokenizer.encode("the thing", add_special_tokens=False)
    assert tokenizer.decode(ids) == "the thing"
    assert tokenizer.pieces is not None


def without(*path: str) -> Callable[[dict[str, Any]], object]:
    def change(content: dict[str, Any]) -> None:
        for name in path[:-1]:
            content = content[name]
        del content[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("special_tokens"), "an old version that does not tell its special tokens"),
        (without("config", "pattern"), "malformed: Object missing required field `pattern`"),
        (without("vocab"), "malformed"),
        (lambda content: content["vocab"].pop(65), "lacks 1 of the 256 bytes"),
        (lambda content: content["vocab"][300 - 42].update(token_bytes="%%"), "malformed"),
        (lambda content: content["special_tokens"].pop(0), "have gaps or doubles"),
        (lambda content: content["special_tokens"][0].update(token_str="<s>"), "stands twice"),
        (
            lambda content: content["config"].update(default_num_special_tokens=1 << 40),
            "special tokens and names",
        ),
        (lambda content: content["config"].update(default_num_special_tokens=2), "special tokens and names"),
        (lambda content: content["config"].update(pattern="("), "cannot be used"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], says: str
) -> None:
    content = document()
    change(content)
    with pytest.raises(TokenizerError, match=says) as caught:
        tokenizer_of(content)
    assert caught.value.remedy


def test_beside_another_vocabulary_it_is_not_read() -> None:
    with pytest.raises(TokenizerError, match=r"vocab\.json and merges\.txt do not say"):
        Tokenizer.from_files({"tekken.json": b"broken", "vocab.json": b"{}", "merges.txt": b""})
