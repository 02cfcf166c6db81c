"""One forward pass of a scheduler's step: slots, positions and tokens as the model wants them."""

from typing import TYPE_CHECKING

import torch

from headrace.engine.scheduler import Request, Step
from headrace.models.batch import ForwardBatch, KVCache, PrefillSpan

if TYPE_CHECKING:
    from headrace.models.decoder.forward import DecoderModel


class Runner:
    """The model with its KV cache; remembers the slots of admitted requests."""

    def __init__(self, model: "DecoderModel", cache: KVCache, page_size: int, device: torch.device) -> None:
        self.model = model
        self._cache, self._device = cache, device
        self._within_page = torch.arange(page_size)
        self._slots: dict[str, torch.Tensor] = {}

    def forget(self, rid: str) -> None:
        """Drop what is remembered of a request."""
        self._slots.pop(rid, None)

    def run(self, step: Step) -> torch.Tensor:
        """Logits, float32 [len(step.sampled()), vocab]."""
        batch = self._batch(step)
        with torch.inference_mode():
            return self.model.forward(batch, self._cache)

    def _slots_of(self, request: Request) -> torch.Tensor:
        """int64 [pages · page size]: where the request's tokens go, in order."""
        if request.rid not in self._slots:
            pages = torch.tensor(request.pages, dtype=torch.int64)
            size = len(self._within_page)
            self._slots[request.rid] = (pages[:, None] * size + self._within_page).flatten()
        return self._slots[request.rid]

    def _batch(self, step: Step) -> ForwardBatch:
        tokens: list[int] = []
        positions: list[torch.Tensor] = []
        write_slots: list[torch.Tensor] = []
        prefills: list[PrefillSpan] = []
        logit_rows: list[int] = []
        for request, count in step.prefills:
            start, end = request.computed, request.computed + count
            slots = self._slots_of(request)
            prefills.append(
                PrefillSpan(len(tokens), count, slots[:end].to(self._device), len(request.prompt))
            )
            tokens += request.prompt[start:end]
            positions.append(torch.arange(start, end))
            write_slots.append(slots[start:end])
            if end == len(request.prompt):
                logit_rows.append(len(tokens) - 1)
        lengths = [request.computed + 1 for request in step.decodes]
        decode_slots = torch.zeros((len(lengths), max(lengths, default=0)), dtype=torch.int64)
        for row, (request, length) in enumerate(zip(step.decodes, lengths, strict=True)):
            slots = self._slots_of(request)
            decode_slots[row, :length] = slots[:length]
            tokens.append(request.output[-1])
            write_slots.append(slots[length - 1 : length])
            logit_rows.append(len(tokens) - 1)
        if lengths:
            positions.append(torch.tensor(lengths) - 1)
        device = self._device
        return ForwardBatch(
            input_ids=torch.tensor(tokens, dtype=torch.int64, device=device),
            positions=torch.cat(positions).to(device),
            write_slots=torch.cat(write_slots).to(device),
            prefills=tuple(prefills),
            decode_slots=decode_slots.to(device),
            decode_lengths=torch.tensor(lengths, dtype=torch.int64, device=device),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        )
