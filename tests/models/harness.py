"""Runs a decoder step by step without an engine: requests with slots of their own in one cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from transformers import PreTrainedModel

from headrace.models.batch import ForwardBatch, KVCache, PrefillSpan
from headrace.models.decoder.forward import DecoderModel
from headrace.models.layout import EMBEDDED_ROWS
from headrace.models.registry import forward_class, read_config
from tests.tiny_models import config_json, parameters_of

Chunk = tuple["Request", Sequence[int]]


@dataclass(slots=True)
class Request:
    """One request: the slots that its tokens may take, in order, and how many it has taken.

    Attributes:
        prompt_length: of a prompt that comes in chunks.
    """

    slots: torch.Tensor
    length: int = 0
    prompt_length: int | None = None
    logits: list[torch.Tensor] = field(default_factory=list)


def ours(model: PreTrainedModel) -> DecoderModel:
    """Our decoder on the same weights, in the model's dtype."""
    config = config_json(model)
    return forward_class(config)(read_config(config), parameters_of(model))


def empty_cache(decoder: DecoderModel, slots: int) -> KVCache:
    config = decoder.config
    shape = (slots, config.num_kv_heads, config.head_dim)
    keys, values = (
        tuple(
            torch.zeros(shape, dtype=decoder.dtype, device=decoder.device) for _ in range(config.num_layers)
        )
        for _ in range(2)
    )
    return KVCache(keys, values)


def batch_of(
    prefills: Sequence[Chunk] = (),
    decodes: Sequence[tuple[Request, int]] = (),
    *,
    padding_slot: int = 0,
    rows: Literal["all", "last", "none"] = "all",
) -> tuple[ForwardBatch, list[Request]]:
    """The step, as the model wants it, and whose each of the wanted rows is; its tokens count as computed."""
    ids: list[int] = []
    positions: list[int] = []
    writes: list[torch.Tensor] = []
    wanted: list[int] = []
    owners: list[Request] = []
    spans: list[PrefillSpan] = []
    for request, tokens in [*prefills, *((request, [token]) for request, token in decodes)]:
        start, end = request.length, request.length + len(tokens)
        if len(spans) < len(prefills):
            spans.append(PrefillSpan(len(ids), len(tokens), request.slots[:end], request.prompt_length))
        own = range(len(ids), len(ids) + len(tokens))
        chosen = {"all": own, "last": own[-1:], "none": own[:0]}[rows]
        wanted += chosen
        owners += [request] * len(chosen)
        ids += tokens
        positions += range(start, end)
        writes.append(request.slots[start:end])
        request.length = end
    lengths = [request.length for request, _ in decodes]
    padded = torch.full((len(decodes), max(lengths, default=0)), padding_slot)
    for row, (request, _) in enumerate(decodes):
        padded[row, : request.length] = request.slots[: request.length]
    batch = ForwardBatch(
        input_ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        write_slots=torch.cat(writes),
        prefills=tuple(spans),
        decode_slots=padded,
        decode_lengths=torch.tensor(lengths, dtype=torch.int64),
        logit_rows=torch.tensor(wanted, dtype=torch.int64),
    )
    return batch, owners


def step(
    decoder: DecoderModel,
    cache: KVCache,
    prefills: Sequence[Chunk] = (),
    decodes: Sequence[tuple[Request, int]] = (),
    *,
    padding_slot: int = 0,
    rows: Literal["all", "last", "none"] = "all",
    before_group: Callable[[int], None] | None = None,
) -> torch.Tensor:
    """One step over prompt chunks and one new token each of `decodes`.

    Wants the logits of all rows, of each request's last, or of none; gives them to their requests and returns them.
    """
    batch, owners = batch_of(prefills, decodes, padding_slot=padding_slot, rows=rows)
    with torch.inference_mode():
        logits = (
            decoder.forward(batch, cache)
            if before_group is None
            else _told(decoder, batch, cache, before_group)
        )
    for owner, row in zip(owners, logits, strict=True):
        owner.logits.append(row)
    return logits


def _told(
    decoder: DecoderModel, batch: ForwardBatch, cache: KVCache, before_group: Callable[[int], None]
) -> torch.Tensor:
    """The logits; `before_group` is called before anything of a group is read."""
    before_group(EMBEDDED_ROWS)
    passage = decoder.begin(batch)
    while passage.logits is None:
        before_group(decoder.group_of(passage))
        decoder.advance(passage, cache)
    return passage.logits


def greedy(decoder: DecoderModel, prompt: Sequence[int], count: int, chunk: int | None = None) -> list[int]:
    """`count` greedy tokens after the prompt, which is prefilled in chunks of `chunk` tokens."""
    total = len(prompt) + count
    request = Request(torch.arange(total), prompt_length=len(prompt))
    cache = empty_cache(decoder, total)
    for start in range(0, len(prompt), chunk or len(prompt)):
        step(decoder, cache, prefills=[(request, prompt[start : start + (chunk or len(prompt))])])
    tokens = [int(request.logits[-1].argmax())]
    while len(tokens) < count:
        step(decoder, cache, decodes=[(request, tokens[-1])])
        tokens.append(int(request.logits[-1].argmax()))
    return tokens


def theirs_logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """transformers' logits over the whole of `ids`, float32 [tokens, vocab]."""
    _forget_lengths(model)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(ids)])).logits[0].float()
    return logits


def theirs_forced(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """transformers' logits where the prompt is computed at once and the answer token by token."""
    _forget_lengths(model)
    with torch.inference_mode():
        out = model(torch.tensor([list(prompt)]), use_cache=True)
        logits = [out.logits[0]]
        for token in answer:
            out = model(torch.tensor([[token]]), cache=out.cache, use_cache=True)
            logits.append(out.logits[0])
    return torch.cat(logits).float()


def _forget_lengths(model: PreTrainedModel) -> None:
    """Its rotary frequencies may still be those of a longer sequence than the next; a short one resets them."""
    with torch.inference_mode():
        model(torch.tensor([[0]]))


def theirs_greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """transformers' greedy tokens, without stopping at end-of-sequence ids."""
    _forget_lengths(model)
    with torch.inference_mode():
        ids = torch.tensor([list(prompt)])
        generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
        out = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
