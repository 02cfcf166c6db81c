"""The tokenizer against transformers' AutoTokenizer on the same folder."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS, files_of, write_files
from transformers import AutoTokenizer

from headrace.errors import HeadraceError
from headrace.text.tokenizer import Tokenizer
from tests.profiles import examples

TEXTS = [
    "",
    "The capital of France is Paris",
    "  leading and trailing  ",
    "日本語と한국어 and 😀👍🏽, é e\u0301",
    "<|b|> <|eot|> <|more|> <later> <|end|> <tool>",
    "<|im_start|>user\nhi <tool> there<|im_end|>\n",
    "<s>[INST] first [/INST] one</s><s>[INST] second [/INST]",
    "a\u0000b\ufffd\u2028 \u00a0 ",
]

CHAT_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
}
LLAMA_CONFIG: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

FOLDERS: dict[str, dict[str, bytes]] = {
    "plain": files_of(small_tokenizers.byte_level()),
    "bos_by_tokenizer_json": files_of(small_tokenizers.byte_level_with_bos(), CHAT_CONFIG),
    "bos_switched_off": files_of(
        small_tokenizers.byte_level_with_bos(), {**CHAT_CONFIG, "add_bos_token": False}
    ),
    "bos_switched_on": files_of(small_tokenizers.byte_level(), {**CHAT_CONFIG, "add_bos_token": True}),
    "eos_only_stated": files_of(
        small_tokenizers.byte_level_with_bos(), {**CHAT_CONFIG, "add_eos_token": True}
    ),
    "bos_and_eos_alike": files_of(
        small_tokenizers.byte_level(),
        {**CHAT_CONFIG, "eos_token": "<|im_start|>", "add_bos_token": True, "add_eos_token": True},
    ),
    "bos_wanted_but_none_named": files_of(
        small_tokenizers.byte_level(),
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "add_bos_token": True},
    ),
    "added_by_the_config": files_of(
        small_tokenizers.byte_level(),
        {
            **CHAT_CONFIG,
            "eos_token": {"__type": "AddedToken", "content": "<|eot|>", "special": True},
            "added_tokens_decoder": {
                "423": {"content": "<|b|>", "special": False, "normalized": False, "lstrip": True},
                "422": {"content": "<|eot|>", "special": True},
            },
            "additional_special_tokens": ["<|more|>", "<tool>"],
            "pad_token": "<|b|>",
        },
        special_tokens_map={"eos_token": "<|im_start|>"},
    ),
    "named_token_is_special": files_of(
        small_tokenizers.byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<tool>"}
    ),
    "older_files": files_of(
        small_tokenizers.byte_level(),
        {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<later>"]},
        special_tokens_map={
            "bos_token": {"content": "<|im_start|>", "lstrip": False},
            "eos_token": "<|end|>",
            "pad_token": "<pad>",
        },
        added_tokens={"<|end|>": 422, "<later>": 423},
    ),
    "truncation_and_padding_in_the_file": files_of(small_tokenizers.byte_level(), CHAT_CONFIG),
    "gpt2_class": files_of(
        small_tokenizers.byte_level(),
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    ),
    "llama_class": files_of(
        small_tokenizers.byte_fallback(),
        {**LLAMA_CONFIG, "tokenizer_class": "LlamaTokenizerFast", "legacy": False, "add_bos_token": True},
    ),
    "llama_class_legacy": files_of(
        small_tokenizers.byte_fallback(),
        {**LLAMA_CONFIG, "tokenizer_class": "LlamaTokenizer", "legacy": True},
    ),
    "llama_class_without_prefix_space": files_of(
        small_tokenizers.byte_fallback(),
        {**LLAMA_CONFIG, "tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
    ),
    "llama_class_with_gaps": files_of(
        small_tokenizers.byte_fallback_with_gaps(), {**LLAMA_CONFIG, "tokenizer_class": "LlamaTokenizer"}
    ),
    "llama_class_on_byte_level": files_of(
        small_tokenizers.byte_level_with_bos(), {**CHAT_CONFIG, "tokenizer_class": "LlamaTokenizer"}
    ),
    "gemma_like": files_of(
        small_tokenizers.byte_fallback_without_prefix(),
        {**LLAMA_CONFIG, "tokenizer_class": "PreTrainedTokenizerFast"},
    ),
    "mistral": files_of(
        small_tokenizers.byte_fallback(),
        {**LLAMA_CONFIG, "tokenizer_class": "LlamaTokenizer"},
        config={"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    ),
    "names_of_the_class": files_of(
        small_tokenizers.byte_fallback_without_prefix(),
        {"tokenizer_class": "LlamaTokenizer", "unk_token": None},
    ),
    "unigram": files_of(small_tokenizers.metaspace(), {"tokenizer_class": "PreTrainedTokenizerFast"}),
}


def truncated(files: dict[str, bytes]) -> dict[str, bytes]:
    content = json.loads(files["tokenizer.json"])
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    return {**files, "tokenizer.json": json.dumps(content).encode()}


FOLDERS["truncation_and_padding_in_the_file"] = truncated(FOLDERS["truncation_and_padding_in_the_file"])


@functools.cache
def ours(name: str) -> Tokenizer:
    files = FOLDERS[name]
    model_type = json.loads(files.get("config.json", b"{}")).get("model_type")
    return Tokenizer.from_files(files, model_type=model_type)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Name → transformers' tokenizer of that folder."""
    loaded: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in loaded:
            folder: Path = write_files(FOLDERS[name], tmp_path_factory.mktemp(name))
            loaded[name] = AutoTokenizer.from_pretrained(folder)
        return loaded[name]

    return load


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_equal_transformers(name: str, reference: Any) -> None:
    tokenizer, expected = ours(name), reference(name)
    for text in TEXTS:
        for special in (True, False):
            assert tokenizer.encode(text, add_special_tokens=special) == expected.encode(
                text, add_special_tokens=special
            ), text


@pytest.mark.parametrize("name", FOLDERS)
def test_text_equals_transformers(name: str, reference: Any) -> None:
    tokenizer, expected = ours(name), reference(name)
    for text in TEXTS:
        ids = expected.encode(text)
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected.decode(
                ids, skip_special_tokens=skip
            ), text


@pytest.mark.parametrize("name", FOLDERS)
def test_special_tokens_equal_transformers(name: str, reference: Any) -> None:
    tokenizer, expected = ours(name), reference(name)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (expected.bos_token, expected.eos_token)
    assert tokenizer.eos_token_id == expected.eos_token_id
    assert tokenizer.vocab_size == len(expected)
    assert tokenizer.special_ids == {i for i, token in expected.added_tokens_decoder.items() if token.special}


@settings(max_examples=examples(60))
@given(
    text=st.text(max_size=40), name=st.sampled_from(["bos_by_tokenizer_json", "llama_class", "gemma_like"])
)
def test_ids_of_any_text_equal_transformers(text: str, name: str, reference: Any) -> None:
    assert ours(name).encode(text) == reference(name).encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_outside_the_vocabulary_add_nothing(kind: str) -> None:
    tokenizer = Tokenizer.from_files(files_of(KINDS[kind]()))
    ids = tokenizer.encode("the river")
    beyond = tokenizer.vocab_size + 7
    assert tokenizer.decode([beyond, *ids, beyond]) == tokenizer.decode(ids)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(HeadraceError, match=r"U\+D83D.*at character 3"):
        ours("plain").encode("abc\ud83d")


def test_a_folder_without_tokenizer_json_is_told_what_is_there() -> None:
    with pytest.raises(
        HeadraceError, match=r"no tokenizer\.json; there is: tokenizer_config\.json, vocab\.json"
    ):
        Tokenizer.from_files({"vocab.json": b"{}", "tokenizer_config.json": b"{}"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"a":' * 10_000),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"a": {"content": "x"}}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"7": "x"}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"7": {"content": 1}}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": ["x"]}'),
        ("special_tokens_map.json", b"nothing"),
        ("added_tokens.json", b'{"x": null}'),
    ],
)
def test_a_malformed_file_is_named(name: str, content: bytes) -> None:
    files = {"tokenizer.json": FOLDERS["plain"]["tokenizer.json"], name: content}
    with pytest.raises(HeadraceError, match=name.replace(".", r"\.")):
        Tokenizer.from_files(files)
