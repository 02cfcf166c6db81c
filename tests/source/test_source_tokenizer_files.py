"""Which files of a listing make the tokenizer."""

import pytest

from headrace.source.files import choose_metadata, is_tokenizer_file
from headrace.source.objects import Listing, ObjectInfo

VOCABULARIES = [
    "merges.txt",
    "qwen.tiktoken",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.model",
    "vocab.json",
]


def chosen(*names: str, tokenizer_only: bool = False) -> list[str]:
    listing = Listing(tuple(ObjectInfo(f"m/{name}", name, 10, "v") for name in sorted(names)))
    return [
        item.name for item in choose_metadata(listing, "s3://b/m", tokenizer_only=tokenizer_only).metadata
    ]


def test_without_tokenizer_json_every_kind_of_vocabulary_is_fetched() -> None:
    assert chosen("config.json", *VOCABULARIES) == ["config.json", *VOCABULARIES]


def test_beside_tokenizer_json_no_other_vocabulary_is_fetched() -> None:
    names = chosen("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", *VOCABULARIES)
    assert names == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]


def test_a_folder_that_is_read_for_its_tokenizer_gives_nothing_else() -> None:
    names = chosen("config.json", "generation_config.json", "qwen.tiktoken", "README.md", tokenizer_only=True)
    assert names == ["qwen.tiktoken"]


@pytest.mark.parametrize("name", [*VOCABULARIES, "tokenizer.json", "added_tokens.json"])
def test_a_file_of_the_tokenizer_is_known_by_its_name(name: str) -> None:
    assert is_tokenizer_file(name)
    assert not is_tokenizer_file(f"{name}.bak")
