"""What the answers of the two routes differ in, as data: how a choice, a piece of one and the whole are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from headrace.server.openai.choice import Delta
from headrace.server.openai.generation import Generation
from headrace.server.openai.protocol import ChunkUsage, MatchedStop, Usage

Whole = TypeVar("Whole")
Piece = TypeVar("Piece")
_Choice = TypeVar("_Choice", contravariant=True)
_Usage = TypeVar("_Usage", contravariant=True)


class MakeAnswer(Protocol[_Choice, _Usage]):
    """A type of `protocol` that holds choices."""

    def __call__(
        self, *, id: str, created: int, model: str, choices: tuple[_Choice, ...], usage: _Usage
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class AnswerShape(Generic[Whole, Piece]):
    """Of one route.

    Attributes:
        id_prefix: of OpenAI's id of the answer.
        default_max_tokens: None means the rest of the context.
        of_choice: a whole choice, from its index and all of its text.
        answer: all choices.
        of_delta: what a delta adds to a choice in a stream, each in a chunk of its own; from its index, whether the
            delta is its first, and the delta.
        chunk: a part of a stream, with one piece, or with none where it tells the usage at the end.
    """

    id_prefix: str
    default_max_tokens: int | None
    of_choice: Callable[[Generation, int, Delta], Whole]
    answer: MakeAnswer[Whole, Usage]
    of_delta: Callable[[Generation, int, bool, Delta], Sequence[Piece]]
    chunk: MakeAnswer[Piece, ChunkUsage]


def told_stop(delta: Delta) -> MatchedStop | UnsetType:
    """`matched_stop` as clients see it: absent where nothing matched."""
    return UNSET if delta.matched_stop is None else delta.matched_stop
