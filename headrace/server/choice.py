"""One choice of an answer: token ids in, text out, ended by the engine or by a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ipc.messages import TokenOutput

if TYPE_CHECKING:
    from headrace.text.detokenizer import Detokenizer
    from headrace.text.stop_matcher import StopMatcher


@dataclass(frozen=True, slots=True)
class Delta:
    """What an output of the engine added to a choice.

    Attributes:
        text: text that is certain; may be "".
        finish_reason: set once, in the choice's last delta.
        matched_stop: the stop string or token id that ended it, if one did.
    """

    text: str
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class ChoiceText:
    """The state of one choice.

    Attributes:
        token_count: generated tokens up to the end, the one that ended the answer included.
        finished: the last delta has been given.
    """

    __slots__ = ("_detokenizer", "_stops", "finished", "token_count")

    def __init__(self, detokenizer: "Detokenizer", stops: "StopMatcher") -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self.token_count = 0
        self.finished = False

    def push(self, output: TokenOutput) -> Delta:
        """Take an output; its tokens after a stop string's end do not count."""
        assert not self.finished
        ids: Sequence[int] = output.token_ids
        ended_by_id = output.matched_stop is not None
        if ended_by_id:
            ids = ids[:-1]  # the id that ended the answer is no part of its text
        text = ""
        for token_id in ids:
            self.token_count += 1
            step = self._stops.push(self._detokenizer.push((token_id,)))
            text += step.text
            if step.matched is not None:
                return self._finish(text, "stop", step.matched)
        if output.finish_reason is None:
            return Delta(text)
        self.token_count += ended_by_id
        step = self._stops.push(self._detokenizer.finish())
        text += step.text
        if step.matched is not None:
            return self._finish(text, "stop", step.matched)
        return self._finish(text + self._stops.finish(), output.finish_reason, output.matched_stop)

    def _finish(self, text: str, reason: str, matched_stop: int | str | None) -> Delta:
        self.finished = True
        return Delta(text, reason, matched_stop)
