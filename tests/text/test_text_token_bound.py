"""The fewest tokens of a text: never more than it has, and no claim where a part of the tokenizer allows none."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from headrace.text.token_bound import token_bound

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level() -> Tokenizer:
    vocabulary = {piece: index for index, piece in enumerate([*ALPHABET, "aa", "aaaa"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "a"), ("aa", "aa")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return backend


@pytest.mark.parametrize("text", ["a" * 1001, "hello " * 50, "é" * 77, "\u212a" * 90, "", "e\u0301" * 33])
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.NFKC()])
def test_no_text_has_fewer(text: str, normalizer: normalizers.Normalizer | None) -> None:
    backend = byte_level()
    if normalizer is not None:
        backend.normalizer = normalizer
    bound = token_bound(backend)
    assert bound is not None
    assert bound.fewest_tokens(text) <= len(backend.encode(text).ids)


def test_it_is_exact_where_a_text_is_made_of_the_longest_token() -> None:
    bound = token_bound(byte_level())
    assert bound is not None
    assert bound.fewest_tokens("a" * 1001) == 251 == len(byte_level().encode("a" * 1001).ids)


def test_an_added_token_may_be_the_longest() -> None:
    backend = byte_level()
    backend.add_tokens([AddedToken("<|" + "x" * 50 + "|>")])
    bound = token_bound(backend)
    assert bound is not None
    assert bound.longest == 54


def strip(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])


def collapse(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Replace("  ", " ")


def drop_spaces(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]
    )


def swallow_spaces(backend: Tokenizer) -> None:
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def lose_a_byte(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.NFC()
    backend.model = models.BPE(vocab={piece: index for index, piece in enumerate(ALPHABET[1:])}, merges=[])


@pytest.mark.parametrize("change", [strip, collapse, drop_spaces, swallow_spaces, lose_a_byte])
def test_nothing_is_claimed_where_text_may_vanish(change) -> None:  # type: ignore[no-untyped-def]
    backend = byte_level()
    change(backend)
    assert token_bound(backend) is None


def test_bytes_that_are_in_no_token_do_not_count() -> None:
    backend = byte_level()
    backend.model = models.BPE(
        vocab={piece: index for index, piece in enumerate(set(ALPHABET) - {"b"})}, merges=[]
    )
    bound = token_bound(backend)
    assert bound is not None
    assert bound.fewest_tokens("ab" * 70) == 70 == len(backend.encode("ab" * 70).ids)
