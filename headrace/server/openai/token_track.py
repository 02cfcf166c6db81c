"""The tokens of one choice beside its text: where each begins, and how likely it was."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ipc.messages import TokenLogprob

if TYPE_CHECKING:
    from headrace.text.pieces import Piece, PieceTable


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token of a choice.

    Attributes:
        offset: the character of the choice's text (echo included) at which it begins. A token that continues a
            character has that character's offset.
        logprob: None for the first token of a prompt, which nothing predicts.
        is_end: it ended the answer and is no part of its text.
    """

    token_id: int
    offset: int
    logprob: TokenLogprob | None
    is_end: bool = False


class TokenTrack:
    """Keeps entries until their text is let through: a text that is held back holds its tokens back too.

    Attributes:
        length: characters of the text so far, let through or not.
    """

    __slots__ = ("_pending", "_pieces", "length")

    def __init__(self, pieces: "PieceTable", *, start: int = 0) -> None:
        """`start`: characters that stand before the first token."""
        self._pieces = pieces
        self._pending: deque[TokenEntry] = deque()
        self.length = start

    def add(self, token_id: int, grown: int, logprob: TokenLogprob | None, *, is_end: bool = False) -> None:
        """The next token, which made the text `grown` characters longer."""
        before, self.length = self.length, self.length + grown
        offset = first_character(self._pieces.piece(token_id), before, self.length)
        self._pending.append(TokenEntry(token_id, offset, logprob, is_end))

    def take_before(self, offset: int) -> tuple[TokenEntry, ...]:
        """The entries, not taken yet, of the tokens that begin before this character."""
        taken = []
        while self._pending and self._pending[0].offset < offset:
            taken.append(self._pending.popleft())
        return tuple(taken)

    def take_all(self) -> tuple[TokenEntry, ...]:
        """The entries that are left."""
        taken = tuple(self._pending)
        self._pending.clear()
        return taken


def first_character(piece: "Piece | None", before: int, after: int) -> int:
    """Where a token begins whose arrival made a text of `before` characters one of `after`.

    A token of whole characters ends at `after`: what broken bytes before it became lies between. Only part of
    it may stand in the text: special tokens are left out, and so is the space before a text's first word.
    """
    if isinstance(piece, bytes):
        try:
            piece = piece.decode()
        except UnicodeDecodeError:
            return before
    return before if piece is None else max(before, after - len(piece))
