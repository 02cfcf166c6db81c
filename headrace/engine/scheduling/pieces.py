"""A step in pieces that are computed one after another, each no larger than a step of the loaded model. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat, takewhile

from headrace.engine.scheduling.request import Request, Step


@dataclass(frozen=True, slots=True)
class Piece:
    """A step, or a part of one. Equal pieces compute the same tokens, with the same keys, to the same slots.

    Attributes:
        starts: how many tokens of each of `step.requests()` come before those that are computed.
        pages_changed: of each of them, when the piece was cut.
    """

    step: Step
    starts: tuple[int, ...]
    pages_changed: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        """How many tokens of prompts are computed."""
        return sum(count for _, count in self.step.prefills)

    def prefills(self) -> list[tuple[Request, int, int]]:
        """Requests whose prompts are computed: from which token on, and up to which."""
        starts = self.starts[: len(self.step.prefills)]
        return [
            (request, start, start + count)
            for (request, count), start in zip(self.step.prefills, starts, strict=True)
        ]

    def input_ids(self) -> list[int]:
        """The tokens that are computed, in the order of the rows."""
        ids: list[int] = []
        for request, start, end in self.prefills():
            ids += request.tokens(start, end)
        return ids + [request.output[-1] for request in self.step.decodes]


def whole(step: Step) -> Piece:
    """A step as one piece."""
    return _piece([(request, request.computed, count) for request, count in step.prefills], step.decodes)


def pieces_of(step: Step, most_tokens: int, begun: Sequence[Piece] = ()) -> list[Piece]:
    """The step's prompts in their order, `most_tokens` of them a piece; its decodes are in the first.

    Each piece can be committed when those before it are. As far as the step begins with `begun`, these are its pieces,
    however short.
    """
    pieces = _cut(step, most_tokens, [piece.prompt_tokens for piece in begun])
    pairs = zip(pieces, begun, strict=False)
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if kept == len(begun):
        return pieces
    return _cut(step, most_tokens, [piece.prompt_tokens for piece in begun[:kept]])


def _cut(step: Step, most_tokens: int, sizes: Sequence[int]) -> list[Piece]:
    """Args: sizes: prompt tokens of the first pieces; the others have most_tokens."""
    rooms = chain(sizes, repeat(most_tokens))
    pieces: list[Piece] = []
    parts: list[tuple[Request, int, int]] = []
    decodes, room = step.decodes, next(rooms)
    for request, count in step.prefills:
        start, end = request.computed, request.computed + count
        while start < end:
            if room == 0:
                pieces.append(_piece(parts, decodes))
                parts, decodes, room = [], (), next(rooms)
            taken = min(room, end - start)
            parts.append((request, start, taken))
            start, room = start + taken, room - taken
    if parts or decodes:
        pieces.append(_piece(parts, decodes))
    return pieces


def _piece(parts: list[tuple[Request, int, int]], decodes: tuple[Request, ...]) -> Piece:
    """Args: parts: requests, where each begins, how many tokens of it are computed."""
    step = Step(tuple((request, count) for request, _, count in parts), decodes)
    starts = (*(start for _, start, _ in parts), *(request.computed for request in decodes))
    return Piece(step, starts, tuple(request.pages_changed for request in step.requests()))
