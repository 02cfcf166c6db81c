"""Folders with a tiktoken vocabulary or with vocab.json and merges.txt only, against tiktoken and transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import CORPUS, byte_level, write_files
from small_vocabularies import tiktoken_content, tiktoken_library, tiktoken_ranks
from transformers import AutoTokenizer

from headrace.errors import HeadraceError
from headrace.text.chat_template import ChatTemplate
from headrace.text.detokenizer import Detokenizer
from headrace.text.tiktoken_families import LLAMA3, QWEN
from headrace.text.tokenizer import Tokenizer

BASE = len(tiktoken_ranks())
QWEN_FILES = {"qwen.tiktoken": tiktoken_content()}
LLAMA3_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast"}
LLAMA3_FILES = {
    "tokenizer.model": tiktoken_content(),
    "tokenizer_config.json": json.dumps(LLAMA3_CONFIG).encode(),
}
FAMILIES = {
    "qwen": (QWEN, Tokenizer.from_files(QWEN_FILES)),
    "llama3": (LLAMA3, Tokenizer.from_files(LLAMA3_FILES)),
}

any_text = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [
                *dict.fromkeys(CORPUS),
                "  ",
                "\r\n\n",
                "1234567",
                "don'T",
                "<|im_start|>",
                "<|eot_id|>",
                " xyzzy",
                "e\u0301",
            ]
        ),
        max_size=5,
    ).map("".join),
)


@given(text=any_text)
def test_ids_of_any_text_equal_tiktoken_for_llama3(text: str) -> None:
    family, tokenizer = FAMILIES["llama3"]
    library = tiktoken_library(family.pattern, family.special_tokens)
    assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text, allowed_special="all")


@given(text=any_text)
def test_ids_of_any_text_equal_tiktoken_for_qwen(text: str) -> None:
    import unicodedata

    family, tokenizer = FAMILIES["qwen"]
    library = tiktoken_library(family.pattern, family.special_tokens)
    assert tokenizer.encode(text) == library.encode(unicodedata.normalize("NFC", text), allowed_special="all")


@given(ids=st.lists(st.integers(0, BASE - 1), max_size=30), cut=st.integers(0, 30))
def test_any_ids_stream_as_tiktoken_decodes(ids: list[int], cut: int) -> None:
    family, tokenizer = FAMILIES["llama3"]
    library = tiktoken_library(family.pattern, family.special_tokens)
    made = Detokenizer(tokenizer)
    assert made.push(ids[:cut]) + made.push(ids[cut:]) + made.finish() == library.decode(ids)


def test_llama3_takes_digits_by_three_and_qwen_one_by_one() -> None:
    ranks = tiktoken_ranks()
    assert FAMILIES["llama3"][1].encode("1234", add_special_tokens=False) == [ranks[b"123"], ranks[b"4"]]
    assert FAMILIES["qwen"][1].encode("1234") == [ranks[digit] for digit in (b"1", b"2", b"3", b"4")]


@pytest.mark.parametrize(
    ("name", "token", "offset"),
    [
        ("llama3", "<|begin_of_text|>", 0),
        ("llama3", "<|start_header_id|>", 6),
        ("llama3", "<|eot_id|>", 9),
        ("llama3", "<|reserved_special_token_250|>", 255),
        ("qwen", "<|endoftext|>", 0),
        ("qwen", "<|im_end|>", 2),
        ("qwen", "<|extra_204|>", 207),
    ],
)
def test_a_familys_special_tokens_follow_the_vocabulary(name: str, token: str, offset: int) -> None:
    tokenizer = FAMILIES[name][1]
    assert tokenizer.encode(token, add_special_tokens=False) == [BASE + offset]
    assert BASE + offset in tokenizer.special_ids


def test_llama3_begins_a_text_with_its_bos_and_qwen_has_none() -> None:
    assert FAMILIES["llama3"][1].encode("the")[0] == BASE
    assert FAMILIES["llama3"][1].eos_token == "<|end_of_text|>"
    assert FAMILIES["qwen"][1].bos_token is None
    assert FAMILIES["qwen"][1].encode("<|endoftext|>") == [BASE]
    template = ChatTemplate.from_files(LLAMA3_FILES, override="{{ bos_token }}")
    assert template is not None and template.render([]) == "<|begin_of_text|>"


def test_names_in_the_config_take_the_place_of_the_familys(tmp_path: Path) -> None:
    names = {str(BASE): "<|begin_of_text|>", str(BASE + 4): "<|pad|>", str(BASE + 260): "<|image|>"}
    config = {
        **LLAMA3_CONFIG,
        "bos_token": "<|begin_of_text|>",
        "added_tokens_decoder": {
            token_id: {"content": name, "special": True, "normalized": False}
            for token_id, name in names.items()
        },
    }
    files = {**LLAMA3_FILES, "tokenizer_config.json": json.dumps(config).encode()}
    tokenizer = Tokenizer.from_files(files)
    expected = AutoTokenizer.from_pretrained(write_files(files, tmp_path))
    text = "the <|begin_of_text|> river<|pad|> and <|image|>"
    assert tokenizer.encode(text, add_special_tokens=False) == expected.encode(text, add_special_tokens=False)
    assert tokenizer.encode("<|eot_id|>", add_special_tokens=False) == [BASE + 9]


def test_a_familys_token_that_the_config_moves_is_not_there_twice() -> None:
    config = {
        **LLAMA3_CONFIG,
        "added_tokens_decoder": {str(BASE + 4): {"content": "<|eot_id|>", "special": True}},
    }
    tokenizer = Tokenizer.from_files({**LLAMA3_FILES, "tokenizer_config.json": json.dumps(config).encode()})
    assert tokenizer.encode("<|eot_id|>", add_special_tokens=False) == [BASE + 4]
    assert tokenizer.encode("<|reserved_special_token_250|>", add_special_tokens=False) == [BASE + 255]


def test_a_vocabulary_of_no_known_size_and_no_class_is_refused() -> None:
    with pytest.raises(HeadraceError, match=r"tokenizer\.model .*tokenizer_class not given"):
        Tokenizer.from_files({"tokenizer.model": tiktoken_content()})


def test_a_vocabulary_of_an_unknown_family_is_refused() -> None:
    files = {
        "hy.tiktoken": tiktoken_content(),
        "tokenizer_config.json": b'{"tokenizer_class": "HYTokenizer"}',
    }
    with pytest.raises(HeadraceError, match=r"hy\.tiktoken .*tokenizer_class HYTokenizer.*known are"):
        Tokenizer.from_files(files)


def test_a_special_token_far_beyond_the_vocabulary_is_refused_before_memory_is() -> None:
    config = {**LLAMA3_CONFIG, "added_tokens_decoder": {"9000000000": {"content": "<far>", "special": True}}}
    with pytest.raises(HeadraceError, match="names the token 9000000000, far beyond a vocabulary of"):
        Tokenizer.from_files({**LLAMA3_FILES, "tokenizer_config.json": json.dumps(config).encode()})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (tiktoken_content() + b"!!! 7\n", f"Line {BASE + 1} of qwen.tiktoken"),
        (tiktoken_content() + b"YQ 9999\n", f"Line {BASE + 1} of qwen.tiktoken"),
        (tiktoken_content() + b"YWFhYWFh 99999\n", "gaps or doubles"),
        (b"\n".join(tiktoken_content().splitlines()[3:]), "lacks 3 of the 256 bytes"),
        (b"", "lacks 256 of the 256 bytes"),
    ],
)
def test_a_malformed_tiktoken_file_is_told_with_its_place(content: bytes, problem: str) -> None:
    with pytest.raises(HeadraceError, match=problem):
        Tokenizer.from_files({"qwen.tiktoken": content})


def byte_level_files(settings: dict[str, Any]) -> dict[str, bytes]:
    state = json.loads(byte_level().to_str())["model"]
    merges = "\n".join(["#version: 0.2", *(f"{left} {right}" for left, right in state["merges"])])
    return {
        "vocab.json": json.dumps(state["vocab"]).encode(),
        "merges.txt": merges.encode() + b"\n",
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


BYTE_LEVEL: dict[str, dict[str, Any]] = {
    "gpt2": {"tokenizer_class": "GPT2Tokenizer"},
    "gpt2_with_space": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True},
    "qwen2": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"},
}


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_vocab_and_merges_encode_as_transformers_does(name: str, tmp_path: Path) -> None:
    files = byte_level_files(BYTE_LEVEL[name])
    expected = AutoTokenizer.from_pretrained(write_files(files, tmp_path))
    tokenizer = Tokenizer.from_files(files)
    for text in [*CORPUS[:5], "a 1234  b\n\n c", "<|im_start|>hi<|endoftext|>", "e\u0301 don'T"]:
        ids = tokenizer.encode(text)
        assert ids == expected.encode(text), text
        assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (expected.bos_token, expected.eos_token)


def test_vocab_and_merges_of_another_class_are_refused() -> None:
    with pytest.raises(HeadraceError, match="do not say how text is cut, and tokenizer_class is Other"):
        Tokenizer.from_files(byte_level_files({"tokenizer_class": "OtherTokenizer"}))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("merges.txt", b"a b\na b c\n", r"Line 2 of merges\.txt"),
        ("merges.txt", b"\xff", "vocabulary cannot be used"),
        ("merges.txt", b"nothing there\n", "vocabulary cannot be used"),
        ("vocab.json", b'{"a": "b"}', "vocabulary cannot be used"),
        ("vocab.json", b"[]", r"vocab\.json holds a JSON list"),
    ],
)
def test_malformed_vocab_and_merges_are_told(name: str, content: bytes, problem: str) -> None:
    with pytest.raises(HeadraceError, match=problem):
        Tokenizer.from_files({**byte_level_files({"tokenizer_class": "GPT2Tokenizer"}), name: content})
