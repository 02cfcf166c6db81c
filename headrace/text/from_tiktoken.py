"""A tiktoken vocabulary (a token's bytes in base64, its rank) as a tokenizer of the `tokenizers` library.

The file holds the tokens only. How text is cut before they are looked for, and which special tokens follow them, is
written in each family's own program; the families here are the ones whose models are published as such files.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.text.pieces import byte_level_token
from headrace.text.tiktoken_families import Family
from headrace.text.tokenizer_error import TokenizerError

_MOST_SPECIAL_TOKENS = 1 << 16
_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,9})")


def build_from_tiktoken(content: bytes, name: str, family: Family, names: Mapping[int, str]) -> Tokenizer:
    """The tokenizer of a vocabulary file's content.

    `names`: id → special token, as far as the model's files give them; the family's own stand where they give none.
    Raises TokenizerError for a malformed file.
    """
    ranks = _read_ranks(content, name)
    tokenizer = Tokenizer(bpe_of_ranks(ranks))
    tokenizer.normalizer = normalizers.NFC() if family.nfc else None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(family.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = _special_tokens(len(ranks), family, names)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _special_tokens(start: int, family: Family, names: Mapping[int, str]) -> list[str]:
    """Those from the id `start` on, without a gap: the library gives ids in this order."""
    own = dict(enumerate(family.special_tokens, start))
    end = max([*names, *own]) + 1
    if end - start > _MOST_SPECIAL_TOKENS:
        raise TokenizerError(
            f"added_tokens_decoder names the token {end - 1}, far beyond a vocabulary of {start}.",
            remedy="Upload the model's files again.",
        )
    # A name that the files give to one id is not also the family's for another.
    own = {token_id: token for token_id, token in own.items() if token not in names.values()}
    by_id = {**own, **names}
    return [by_id.get(token_id, f"<|reserved_token_{token_id}|>") for token_id in range(start, end)]


def _read_ranks(content: bytes, name: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        try:
            token = base64.b64decode(match.group(1), validate=True) if match else b""
        except binascii.Error:
            token = b""
        if match is None or not token:
            raise TokenizerError(
                f"Line {number} of {name} is not a token in base64 and its rank.",
                remedy="Upload the model's file again.",
            )
        ranks[token] = int(match.group(2))
    check_ranks(ranks, name)
    return ranks


def check_ranks(ranks: Mapping[bytes, int], name: str) -> None:
    """Every byte must be a token, and every rank from 0 on be there. Raises TokenizerError."""
    lacking = sum(bytes([byte]) not in ranks for byte in range(256))
    if lacking or sorted(ranks.values()) != list(range(len(ranks))):
        problem = f"lacks {lacking} of the 256 bytes" if lacking else "has gaps or doubles in its ranks"
        raise TokenizerError(f"{name} {problem}.", remedy="Upload the model's file again.")


def bpe_of_ranks(ranks: Mapping[bytes, int], before: Sequence[str] = ()) -> models.BPE:
    """tiktoken joins whichever two neighbours make the token of the lowest rank.

    `before`: tokens of the ids below those of the vocabulary, which are not looked for in a text.
    """
    merges = sorted(
        (rank, token[:cut], token[cut:])
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    )
    names = {token: byte_level_token(token) for token in ranks}
    return models.BPE(
        {token: number for number, token in enumerate(before)}
        | {names[token]: rank + len(before) for token, rank in ranks.items()},
        [(names[left], names[right]) for _, left, right in merges],
        # A piece of text that is a token as a whole is not built up from its bytes.
        ignore_merges=True,
    )
