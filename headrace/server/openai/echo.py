"""A prompt as the beginning of a choice's text, with the place of each of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ipc.messages import TokenLogprob
from headrace.server.openai.token_track import TokenEntry, first_character

if TYPE_CHECKING:
    from headrace.text.tokenizer import Tokenizer

# Characters by which a normalised text may fall behind the given one from one token to the next.
_LOOK_AHEAD = 8


@dataclass(frozen=True, slots=True)
class Echo:
    """Attributes:
    text: what the answer's text begins with.
    token_ids: the prompt's.
    offsets: the character of `text` at which each token begins.
    """

    text: str
    token_ids: Sequence[int]
    offsets: tuple[int, ...]

    def entries(self, logprobs: Sequence[TokenLogprob]) -> tuple[TokenEntry, ...]:
        """The prompt's tokens with their logprobs, which begin with the second token's."""
        assert len(logprobs) == len(self.token_ids) - 1
        return tuple(
            TokenEntry(token_id, offset, logprob)
            for token_id, offset, logprob in zip(self.token_ids, self.offsets, (None, *logprobs), strict=True)
        )


def echo_ids(tokenizer: "Tokenizer", ids: Sequence[int], *, skip_special_tokens: bool) -> Echo:
    """A prompt of token ids: the text of those ids, without a character that they leave incomplete.

    (The answer's first tokens may complete it; it is part of the answer's text then.)
    """
    from headrace.text.detokenizer import Detokenizer

    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    parts, offsets, length = [], [], 0
    for token_id in ids:
        part = detokenizer.push((token_id,))
        parts.append(part)
        offsets.append(first_character(tokenizer.pieces.piece(token_id), length, length + len(part)))
        length += len(part)
    return Echo("".join(parts), ids, tuple(offsets))


def echo_text(tokenizer: "Tokenizer", ids: Sequence[int], text: str) -> Echo:
    """A prompt of text, exactly as it was given.

    Its tokens are found in it one after the other: special tokens where the text spells them, otherwise (they were
    added) between two characters. Where the tokenizer changed the text (Unicode normalization), a token is looked
    for a little further on.
    """
    from headrace.server.openai.logprobs import token_text
    from headrace.text.detokenizer import Detokenizer

    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    offsets, here = [], 0
    for token_id in ids:
        if token_id in tokenizer.special_ids and not text.startswith(
            token_text(token_id, tokenizer.pieces), here
        ):
            offsets.append(here)
            continue
        part = detokenizer.push((token_id,))
        found = text.find(part, here, here + len(part) + _LOOK_AHEAD)
        after = min((here if found < 0 else found) + len(part), len(text))
        offsets.append(first_character(tokenizer.pieces.piece(token_id), here, after))
        here = after
    return Echo(text, ids, tuple(offsets))
