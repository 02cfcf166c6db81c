"""A tekken vocabulary as a tokenizer of the `tokenizers` library."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers

from headrace.text.from_tiktoken import bpe_of_ranks, check_ranks
from headrace.text.tekken_file import TEKKEN_FILE, read_tekken


def build_from_tekken(content: bytes) -> Tokenizer:
    """The tokenizer of a tekken.json's content. Raises TokenizerError for a malformed file."""
    tekken = read_tekken(content)
    check_ranks(tekken.ranks, TEKKEN_FILE)
    tokenizer = Tokenizer(bpe_of_ranks(tekken.ranks, before=tekken.special))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tekken.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tekken.special]
    )
    return tokenizer
