"""What a request does to its own logits before anything is chosen: bias, penalties, tokens that it may not end with.

The order is transformers' and vLLM's: the bias is added, then the repetition penalty scales, then presence and
frequency are taken away.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from headrace.ipc.messages import SamplingParams

_FLOAT32 = np.finfo(np.float32)
_Ids = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]


def has_adjustments(sampling: SamplingParams) -> bool:
    """Whether a request changes its logits at any time."""
    return bool(
        sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or sampling.min_tokens
    )


class Adjustments:
    """One request's changes, kept up with its answer: a new token costs the same however long the prompt is.

    Ids beyond the vocabulary (an end of sequence that the head has no row for) are passed over.
    """

    def __init__(
        self, sampling: SamplingParams, prompt: Sequence[int], eos_token_ids: Iterable[int], vocab: int
    ) -> None:
        # Below float32's smallest a penalty would be a division by 0.
        self.repetition = max(sampling.repetition_penalty, float(_FLOAT32.tiny))
        self.presence, self.frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._vocab = vocab
        self._min_tokens = sampling.min_tokens
        banned = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            banned.update(eos_token_ids)
        self._banned = self._valid(np.array(sorted(banned), dtype=np.int64))
        self.bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.int64)
        self.bias = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        self._counted = 0
        self._counts_output = bool(self.repetition != 1 or self.presence or self.frequency)
        seen = np.unique(np.array(prompt, dtype=np.int64)) if self.repetition != 1 else np.empty(0, np.int64)
        # Distinct ids of the prompt (where they matter) and the answer, with how often each is in the answer;
        # room for more beyond _size.
        self._ids = self._valid(seen)
        self._size = len(self._ids)
        self._counts: _Floats = np.zeros(self._size, np.float32)
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}

    def is_idle(self, output_length: int) -> bool:
        """Whether nothing is changed after so many tokens, then or later."""
        return not (self._counts_output or len(self.bias_ids) or output_length < self._min_tokens)

    def advance(self, output: Sequence[int]) -> None:
        """Count the tokens that are new in the answer, which never shrinks."""
        assert len(output) >= self._counted
        if not self._counts_output:
            return
        for place in range(self._counted, len(output)):
            self._count(output[place])
        self._counted = len(output)

    @property
    def seen(self) -> _Ids:
        """Distinct ids that penalties apply to."""
        return self._ids[: self._size]

    @property
    def counts(self) -> _Floats:
        """How often each of `seen` is in the answer."""
        return self._counts[: self._size]

    def banned(self, output_length: int) -> _Ids:
        """Ids that may not be chosen after so many tokens."""
        return self._banned if output_length < self._min_tokens else self._banned[:0]

    def _valid(self, ids: _Ids) -> _Ids:
        valid: _Ids = ids[(ids >= 0) & (ids < self._vocab)]
        return valid

    def _count(self, token: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self._size
            if place == len(self._ids):
                room = max(64, place)
                self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1


def adjust(
    logits: torch.Tensor, adjustments: Sequence[Adjustments], outputs: Sequence[Sequence[int]]
) -> None:
    """Change float32 logits [rows, vocab] in place, for requests with these answers so far.

    A finite logit stays below inf; -inf stays.
    """
    for each, output in zip(adjustments, outputs, strict=True):
        each.advance(output)
    device = logits.device

    def tensor(parts: Sequence[npt.NDArray[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    def places(ids: Sequence[_Ids]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = np.repeat(np.arange(len(ids)), [len(part) for part in ids])
        return torch.from_numpy(rows).to(device), tensor(ids)

    if any(len(each.bias_ids) for each in adjustments):
        biases = tensor([each.bias for each in adjustments])
        logits.index_put_(places([each.bias_ids for each in adjustments]), biases, accumulate=True)
    if any(len(each.seen) for each in adjustments):
        row, column = places([each.seen for each in adjustments])
        counts = tensor([each.counts for each in adjustments])
        scales = np.array([(e.repetition, e.presence, e.frequency) for e in adjustments], np.float32)
        repetition, presence, frequency = torch.from_numpy(scales).to(device)[row].unbind(1)
        values = logits[row, column]
        values = torch.where(values < 0, values * repetition, values / repetition)
        values = values - frequency * counts - presence * (counts > 0)
        logits[row, column] = values.clamp(max=float(_FLOAT32.max))
    banned = [each.banned(len(output)) for each, output in zip(adjustments, outputs, strict=True)]
    if any(len(ids) for ids in banned):
        logits[places(banned)] = float("-inf")
