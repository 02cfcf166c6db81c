"""One choice of an answer: token ids in, text out, ended by the engine or by a stop string."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ipc.messages import TokenOutput
from headrace.server.openai.token_track import TokenEntry, TokenTrack

if TYPE_CHECKING:
    from headrace.server.openai.echo import Echo
    from headrace.text.detokenizer import Detokenizer
    from headrace.text.stop_matcher import StopMatcher


@dataclass(frozen=True, slots=True)
class Delta:
    """What an output of the engine added to a choice.

    Attributes:
        text: text that is certain; may be "".
        finish_reason: set once, in the choice's last delta.
        matched_stop: the stop string or token id that ended it, if one did.
        tokens: the tokens that begin in `text` (and the end's), where logprobs are followed.
    """

    text: str
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    tokens: tuple[TokenEntry, ...] = ()


class ChoiceText:
    """The state of one choice.

    Attributes:
        token_count: generated tokens up to the end, the one that ended the answer included.
        cached_tokens: prompt tokens that the engine found in its prefix cache.
        finished: the last delta has been given.
    """

    __slots__ = (
        "_detokenizer",
        "_echo",
        "_length",
        "_logprob_count",
        "_logprob_sum",
        "_stops",
        "_track",
        "cached_tokens",
        "finished",
        "token_count",
    )

    def __init__(
        self,
        detokenizer: "Detokenizer",
        stops: "StopMatcher",
        *,
        track: TokenTrack | None = None,
        echo: "Echo | None" = None,
    ) -> None:
        """`track`: for a choice whose tokens are told with their logprobs; it starts after the `echo`."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._track = track
        self._echo = echo
        self._length = 0 if track is None else track.length
        self._logprob_count = 0
        self._logprob_sum = 0.0
        self.token_count = 0
        self.cached_tokens = 0
        self.finished = False

    def open(self, output: TokenOutput) -> Delta | None:
        """What stands before the answer, which the first output opens: the prompt, if it is echoed."""
        self.cached_tokens += output.cached_tokens
        echo, self._echo = self._echo, None
        if echo is None:
            return None
        return Delta(echo.text, tokens=() if self._track is None else echo.entries(output.prompt_logprobs))

    def push(self, output: TokenOutput) -> Delta:
        """Take an output; its tokens after a stop string's end do not count."""
        assert not self.finished
        ids: Sequence[int] = output.token_ids
        ended_by_id = output.matched_stop is not None
        if ended_by_id:
            ids = ids[:-1]  # the id that ended the answer is no part of its text
        text = ""
        for position, token_id in enumerate(ids):
            grown = self._detokenizer.push((token_id,))
            self._count(output, position, token_id, len(grown))
            step = self._stops.push(grown)
            text += step.text
            if step.matched is not None:
                return self._finish(text, "stop", step.matched, cut=True)
        if output.finish_reason is None:
            return Delta(text, tokens=self._take(len(text)))
        rest = self._detokenizer.finish()
        if self._track is not None:
            self._track.length += len(rest)
        if ended_by_id:
            self._count(output, len(ids), output.token_ids[-1], 0, is_end=True)
        step = self._stops.push(rest)
        text += step.text
        if step.matched is not None:
            return self._finish(text, "stop", step.matched, cut=True)
        return self._finish(text + self._stops.finish(), output.finish_reason, output.matched_stop)

    def mean_logprob(self) -> float:
        """Of the generated tokens, the one that ended the answer included; the engine must have told them all."""
        assert self._logprob_count == self.token_count
        return self._logprob_sum / self.token_count if self.token_count else -math.inf

    def _count(
        self, output: TokenOutput, position: int, token_id: int, grown: int, *, is_end: bool = False
    ) -> None:
        self.token_count += 1
        if output.logprobs:
            self._logprob_count += 1
            self._logprob_sum += output.logprobs[position].logprob
        if self._track is not None:
            assert len(output.logprobs) == len(output.token_ids)
            self._track.add(token_id, grown, output.logprobs[position], is_end=is_end)

    def _take(self, grown: int) -> tuple[TokenEntry, ...]:
        """The entries whose tokens have begun in the text that was let through, now `grown` longer."""
        self._length += grown
        return () if self._track is None else self._track.take_before(self._length)

    def _finish(self, text: str, reason: str, matched_stop: int | str | None, *, cut: bool = False) -> Delta:
        self.finished = True
        tokens = self._take(len(text))
        if self._track is not None and not cut:
            tokens += self._track.take_all()
        return Delta(text, reason, matched_stop, tokens)
