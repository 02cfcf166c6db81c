"""Token ids to text, as they come."""

from collections.abc import Iterable, Sequence

from headrace.text.pieces import take_characters
from headrace.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer, whatever steps its tokens arrive in; one for each choice.

    Joined, the pieces equal `tokenizer.decode` of all ids (after `prompt_ids`: what they add to the prompt's
    text), and only the bytes of a last, incomplete UTF-8 character are held back. One difference is meant:
    with a byte-fallback vocabulary, an invalid byte spoils only itself, as SentencePiece itself decodes. `decode`
    turns the whole run of byte tokens around it into U+FFFD; for that, the run would be held back to its end.

    The cost per token does not depend on the length of the text.
    """

    __slots__ = ("_pending", "_pieces", "_skipped", "_started", "_to_strip")

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> None:
        """`prompt_ids`: what the answer follows, so that a leading space of the answer is kept.

        A character that the prompt leaves incomplete becomes the answer's first one.
        """
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._started = False
        self._to_strip = self._pieces.rules.strip_count
        self._pending = b""
        self._follow(prompt_ids)

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain with `ids`; may be ""."""
        parts: list[str] = []
        for token_id in ids:
            if token_id in self._skipped:
                continue
            piece = self._pieces.piece(token_id, first=not self._started)
            if piece is None:
                continue
            self._started = True
            if isinstance(piece, str):
                parts += [self._end_bytes(), piece]
            else:
                text, self._pending = take_characters(self._pending + piece, self._pieces.rules)
                parts.append(text)
        return self._strip_start("".join(parts))

    def finish(self) -> str:
        """The rest: U+FFFD where the last character stayed incomplete, otherwise ""."""
        return self._strip_start(self._end_bytes())

    def _end_bytes(self) -> str:
        if not self._pending:
            return ""
        text, self._pending = take_characters(self._pending, self._pieces.rules, final=True)
        return text

    def _strip_start(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != self._pieces.rules.strip_character:
                self._to_strip = 0
                break
            self._to_strip -= 1
            text = text[1:]
        return text

    def _follow(self, prompt_ids: Sequence[int]) -> None:
        """Come to the state after the prompt from its two ends: its start decides on stripping, its end on bytes."""
        for position, token_id in enumerate(prompt_ids):
            if self._started and not self._to_strip:
                self._pending = self._bytes_at_end(prompt_ids[position:])
                return
            self.push((token_id,))

    def _bytes_at_end(self, ids: Sequence[int]) -> bytes:
        """The incomplete character at the end of `ids`, which follow an earlier token."""
        tail = b""
        for token_id in reversed(ids):
            # A UTF-8 character has four bytes, so an incomplete one has three.
            if len(tail) >= 3:
                break
            piece = None if token_id in self._skipped else self._pieces.piece(token_id)
            if isinstance(piece, str):
                break
            tail = (piece or b"") + tail
        else:
            tail = self._pending + tail
        return take_characters(tail, self._pieces.rules)[1]
