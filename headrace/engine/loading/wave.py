"""A step that follows the bytes: its pieces go through the layers as these arrive, the later ones in the time that the
first one waits."""

from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from headrace.engine.loading.arriving import Arriving
from headrace.engine.scheduling.pieces import Piece, pieces_of
from headrace.engine.scheduling.request import Step

if TYPE_CHECKING:  # the first bytes are asked for before torch is imported
    from headrace.engine.runner import Begun, Runner, StepLogits


class _UnderWay:
    """A piece, and how far it is."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.tokens = piece.input_ids()
        self.begun: Begun | None = None

    @property
    def is_through(self) -> bool:
        return self.begun is not None and self.begun.is_through

    @property
    def is_past_half(self) -> bool:
        """It costs more to begin it anew, with somebody who has come, than to compute them apart."""
        return self.begun is not None and self.begun.is_past_half

    def is_behind(self, other: "_UnderWay") -> bool:
        """Whether the other one has gone through the layer that is this one's next, whose keys it may need."""
        if other.begun is None or self.is_through:
            return False
        return self.begun is None or self.begun.passage.layer < other.begun.passage.layer


class Wave:
    """The pieces of the present step. What is computed of them outlives a new plan, as far as that has the same pieces.

    What is held for it is the hidden states of each piece that has begun, and no more than one piece's other values.
    """

    def __init__(
        self, runner: "Runner", arriving: Arriving, piece_tokens: int, is_outdated: Callable[[Step], bool]
    ) -> None:
        """Args:
        piece_tokens: of prompts, in a piece.
        is_outdated: asked while bytes are waited for: whether another step should take this one's place.
        """
        self._runner, self._arriving = runner, arriving
        self._piece_tokens = piece_tokens
        self._is_outdated = is_outdated
        self._pieces: list[_UnderWay] = []

    @property
    def is_over(self) -> bool:
        """There is nothing to wait for any more."""
        return self._arriving.is_over

    def forget(self) -> None:
        """Begin anew with the next step, whatever it is."""
        self._pieces.clear()

    def through(self, step: Step) -> "Iterator[tuple[Step, StepLogits]]":
        """Compute a step; each piece that is through, to be committed before the next is asked for, and what it gave.

        Ends where the step is outdated: another one is to be planned. Ends also where, the first piece being through,
        the next has not begun: what is ready should not wait for it. Raises what ended the transfer.
        """
        self._take_up(step)
        has_given = False
        while self._pieces and (self._pieces[0].begun is not None or not has_given):
            first = self._pieces[0]
            if first.begun is not None and first.is_through:
                del self._pieces[0]
                has_given = True
                yield first.piece.step, first.begun.logits()
            elif self._still_waits(first) and self._is_outdated(step):
                return

    def _take_up(self, step: Step) -> None:
        far = [one.piece for one in takewhile(lambda one: one.is_past_half, self._pieces)]
        planned = pieces_of(step, self._piece_tokens, far)
        pairs = zip(self._pieces, planned, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0].piece == pair[1], pairs))
        self._pieces[kept:] = [_UnderWay(piece) for piece in planned[kept:]]

    def _still_waits(self, first: _UnderWay) -> bool:
        """Compute what can be, or wait a moment; whether the first piece cannot go on.

        Where its bytes are there nobody looks for messages, so that these cannot hold up the end.
        """
        if self._advance(first):
            return False
        return self._advance_a_later_one() or not self._advance(first, wait=True)

    def _advance(self, one: _UnderWay, *, wait: bool = False) -> bool:
        """Compute a piece's next part if its parameters are there."""
        if one.begun is None:
            if not self._arriving.has_rows(one.tokens, wait=wait):
                return False
            one.begun = self._runner.begin(one.piece)
            return True
        if not self._arriving.has_group(self._runner.group_of(one.begun), wait=wait):
            return False
        self._runner.advance(one.begun)
        return True

    def _advance_a_later_one(self) -> bool:
        return any(one.is_behind(before) and self._advance(one) for before, one in pairwise(self._pieces))
