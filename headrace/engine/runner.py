"""One forward pass of a scheduler's step: slots, positions and tokens as the model wants them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headrace.engine.scheduling.pieces import Piece, whole
from headrace.engine.scheduling.request import Request, Step
from headrace.models.batch import ForwardBatch, KVCache, PrefillSpan

if TYPE_CHECKING:
    from headrace.models.decoder.forward import DecoderModel, Passage


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """A part of a prompt whose logprobs are wanted.

    Attributes:
        next_ids: the prompt's own next token for each row.
        logits: float32 [len(next_ids), vocab].
    """

    request: Request
    next_ids: list[int]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepLogits:
    """What a step gave.

    Attributes:
        sampled: float32 [len(step.sampled()), vocab].
        scored: rows of prompts whose logprobs are wanted.
    """

    sampled: torch.Tensor
    scored: tuple[ScoredRows, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A piece of a step on its way through the layers."""

    rows: "_Rows"
    passage: "Passage"

    @property
    def is_through(self) -> bool:
        """Nothing of it is left to compute."""
        return self.passage.logits is not None

    @property
    def is_past_half(self) -> bool:
        """It has gone through more layers than are left."""
        return self.passage.layer * 2 > len(self.passage.layers)

    def logits(self) -> StepLogits:
        """What a piece that is through gave."""
        assert self.passage.logits is not None
        return self.rows.part(self.passage.logits)


class Runner:
    """The model with its KV cache; remembers the slots of running requests."""

    def __init__(self, model: "DecoderModel", cache: KVCache, page_size: int, device: torch.device) -> None:
        self.model = model
        self._cache, self._device = cache, device
        self._within_page = torch.arange(page_size)
        self._slots: dict[str, tuple[tuple[int, int], torch.Tensor]] = {}

    def forget(self, rid: str) -> None:
        """Drop what is remembered of a request."""
        self._slots.pop(rid, None)

    def run(self, step: Step) -> StepLogits:
        """Compute a step."""
        piece = whole(step)
        rows = _Rows(piece)
        with torch.inference_mode():
            return rows.part(self.model.forward(self._batch(piece, rows), self._cache))

    # ---- the same, part by part: as `DecoderModel` does it

    def begin(self, piece: Piece) -> Begun:
        """A piece before the first layer; reads the embedding's rows of its tokens."""
        rows = _Rows(piece)
        with torch.inference_mode():
            return Begun(rows, self.model.begin(self._batch(piece, rows)))

    def group_of(self, begun: Begun) -> int:
        """The group of parameters that `advance` will read."""
        return self.model.group_of(begun.passage)

    def advance(self, begun: Begun) -> None:
        """Compute the next layer, or the logits."""
        with torch.inference_mode():
            self.model.advance(begun.passage, self._cache)

    def _slots_of(self, request: Request) -> torch.Tensor:
        """int64 [pages · page size]: where the request's tokens go, in order."""
        version = (request.pages_changed, len(request.pages))
        known = self._slots.get(request.rid)
        if known is None or known[0] != version:
            pages = torch.tensor(request.pages, dtype=torch.int64)
            known = (version, (pages[:, None] * len(self._within_page) + self._within_page).flatten())
            self._slots[request.rid] = known
        return known[1]

    def _batch(self, piece: Piece, rows: "_Rows") -> ForwardBatch:
        positions: list[torch.Tensor] = []
        write_slots: list[torch.Tensor] = []
        prefills: list[PrefillSpan] = []
        row = 0
        for request, start, end in piece.prefills():
            slots = self._slots_of(request)
            prefills.append(PrefillSpan(row, end - start, slots[:end].to(self._device), len(request.prompt)))
            row += end - start
            positions.append(torch.arange(start, end))
            write_slots.append(slots[start:end])
        decodes = piece.step.decodes
        lengths = [request.computed + 1 for request in decodes]
        decode_slots = torch.zeros((len(lengths), max(lengths, default=0)), dtype=torch.int64)
        for row, (request, length) in enumerate(zip(decodes, lengths, strict=True)):
            slots = self._slots_of(request)
            decode_slots[row, :length] = slots[:length]
            write_slots.append(slots[length - 1 : length])
        if lengths:
            positions.append(torch.tensor(lengths) - 1)
        device = self._device
        return ForwardBatch(
            input_ids=torch.tensor(piece.input_ids(), dtype=torch.int64, device=device),
            positions=torch.cat(positions).to(device),
            write_slots=torch.cat(write_slots).to(device),
            prefills=tuple(prefills),
            decode_slots=decode_slots.to(device),
            decode_lengths=torch.tensor(lengths, dtype=torch.int64, device=device),
            logit_rows=torch.tensor(rows.sampled + rows.scored_rows, dtype=torch.int64, device=device),
        )


class _Rows:
    """Which rows of a piece need logits: those that give a token, then those that are scored."""

    def __init__(self, piece: Piece) -> None:
        self.sampled: list[int] = []
        self.scored_rows: list[int] = []
        self.scored: list[tuple[Request, int, list[int]]] = []  # request, first of its scored_rows, next ids
        at = 0
        for request, start, end in piece.prefills():
            count = end - start
            if end == request.length and request.sampling.max_tokens > 0:
                self.sampled.append(at + count - 1)
            if request.is_scored:
                ids = request.prompt[start + 1 : end + 1]
                self.scored.append((request, len(self.scored_rows), ids))
                self.scored_rows += range(at, at + len(ids))
            at += count
        self.sampled += range(at, at + len(piece.step.decodes))

    def part(self, logits: torch.Tensor) -> StepLogits:
        """Tell them apart: logits of the sampled rows, then of the scored ones, [wanted, vocab]."""
        count = len(self.sampled)
        return StepLogits(
            logits[:count],
            tuple(
                ScoredRows(request, ids, logits[count + start : count + start + len(ids)])
                for request, start, ids in self.scored
            ),
        )
