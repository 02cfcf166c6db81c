"""From logits to tokens: greedy rows in one go, the others adjusted and drawn together, each from its own stream.

For each row: bias and penalties (penalties.py), then the largest logit, or temperature, top_k, top_p, min_p and a
draw (draw.py). Logprobs are those of the logits as they came (logprobs.py).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from headrace.engine.sampling.draw import draw, take
from headrace.engine.sampling.logprobs import token_logprobs
from headrace.engine.sampling.penalties import Adjustments, adjust, has_adjustments
from headrace.engine.sampling.vocab_blocks import peak
from headrace.ipc.messages import SamplingParams, TokenLogprob

# Below this temperature nothing but the largest logit has a weight, and far below it float32 would divide by 0.
_GREEDY_BELOW = 1e-6
# Logits that are copied and weighed at a time (4 MiB each): few enough for the
# caches, many enough for one call.
_ELEMENTS = 1 << 20


class SamplingState(Protocol):
    """What the sampler reads of a request. `output` only grows, also over a retraction."""

    rid: str
    sampling: SamplingParams
    prompt: list[int]
    output: list[int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A row's token; `logprob` where the request asked for logprobs."""

    token_id: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class BrokenLogits:
    """A row from which no token can be chosen. Only its request fails: these are what RequestFailed wants."""

    status: int
    code: str
    message: str


_NOT_FINITE = BrokenLogits(
    500,
    "broken_logits",
    "The model computed NaN or infinite logits for this request, so no token can be chosen. If it happens again, "
    "the weights are damaged or overflow their dtype: start the server with --dtype float32 or bfloat16.",
)
_ALL_BANNED = BrokenLogits(
    400,
    "no_token_possible",
    "Every token that the model would choose from is shut out by `min_tokens` with the end-of-sequence ids and "
    "`stop_token_ids`. Lower `min_tokens` or name fewer `stop_token_ids`.",
)


@dataclass(frozen=True, slots=True)
class _Stream:
    """What is kept of a request: its random numbers (None: greedy), its changes to logits (None: none)."""

    generator: torch.Generator | None
    adjustments: Adjustments | None


class Sampler:
    """Chooses tokens, and keeps the random streams and penalties of running requests.

    Without a seed of its own a request gets one from the engine's stream (`--random-seed`).
    """

    def __init__(self, random_seed: int | None, eos_token_ids: frozenset[int] = frozenset()) -> None:
        """`eos_token_ids`: the model's ends of sequence, which min_tokens holds off."""
        self._seeds = random.Random(random_seed)
        self._eos_token_ids = eos_token_ids
        self._streams: dict[str, _Stream] = {}

    def end_at(self, eos_token_ids: frozenset[int]) -> None:
        """Other ends of sequence, for requests to come."""
        self._eos_token_ids = eos_token_ids

    def forget(self, rid: str) -> None:
        """Drop a request's random stream and penalties."""
        self._streams.pop(rid, None)

    def sample(self, logits: torch.Tensor, requests: Sequence[SamplingState]) -> list[Sampled | BrokenLogits]:
        """A token for each row of `logits` (float32 [rows, vocab], left as they are) and its request.

        Greedy is the largest logit, the lowest id among equals; so is a temperature below 1e-6. A request that
        draws takes one number from its stream for each token, so what runs beside it changes nothing. A row from
        which nothing can be chosen is BrokenLogits, and the others are as they would be without it.
        """
        if not requests:
            return []
        vocab = logits.shape[1]
        streams = [self._stream(request, vocab) for request in requests]
        with torch.inference_mode():
            ids, values = peak(logits)
            tokens: list[int] = ids.tolist()
            is_sound = torch.isfinite(values).tolist()
            broken = {row: _NOT_FINITE for row, sound in enumerate(is_sound) if not sound}
            plain: list[int] = []
            adjusted: list[int] = []
            for row, (stream, request) in enumerate(zip(streams, requests, strict=True)):
                if row in broken:
                    continue
                if stream.adjustments is not None and not stream.adjustments.is_idle(len(request.output)):
                    adjusted.append(row)
                elif stream.generator is not None:
                    plain.append(row)
            for rows in _portions(plain, vocab):
                drawn = self._draw(take(logits, rows), values[rows], [requests[row] for row in rows])
                for row, token in zip(rows, drawn, strict=True):
                    tokens[row] = token
            for rows in _portions(adjusted, vocab):
                chosen = self._choose_adjusted(logits[rows], [requests[row] for row in rows])
                for row, choice in zip(rows, chosen, strict=True):
                    if isinstance(choice, BrokenLogits):
                        broken[row] = choice
                    else:
                        tokens[row] = choice
            logprobs = _chosen_logprobs(logits, requests, tokens, broken)
        return [
            broken[row] if row in broken else Sampled(token, logprobs.get(row))
            for row, token in enumerate(tokens)
        ]

    def _choose_adjusted(
        self, logits: torch.Tensor, requests: Sequence[SamplingState]
    ) -> list[int | BrokenLogits]:
        """The tokens of requests that change their logits ([rows, vocab], written over)."""
        streams = [self._streams[request.rid] for request in requests]
        adjustments = [stream.adjustments for stream in streams if stream.adjustments is not None]
        adjust(logits, adjustments, [request.output for request in requests])
        ids, peaks = peak(logits)
        possible = torch.isfinite(peaks).tolist()
        chosen: list[int | BrokenLogits] = [
            token if is_possible else _ALL_BANNED
            for token, is_possible in zip(ids.tolist(), possible, strict=True)
        ]
        rows = [row for row, stream in enumerate(streams) if stream.generator is not None and possible[row]]
        if rows:
            drawn = self._draw(take(logits, rows), peaks[rows], [requests[row] for row in rows])
            for row, token in zip(rows, drawn, strict=True):
                chosen[row] = token
        return chosen

    def _draw(
        self, logits: torch.Tensor, peaks: torch.Tensor, requests: Sequence[SamplingState]
    ) -> list[int]:
        """Tokens from the requests' own streams; their logits are [rows, vocab], with the largest of each."""
        shares = [
            torch.rand((), dtype=torch.float64, generator=self._streams[request.rid].generator)
            for request in requests
        ]
        drawn: list[int] = draw(
            logits, peaks, [request.sampling for request in requests], torch.stack(shares).to(logits.device)
        ).tolist()
        return drawn

    def _stream(self, request: SamplingState, vocab: int) -> _Stream:
        stream = self._streams.get(request.rid)
        if stream is None:
            sampling = request.sampling
            generator = adjustments = None
            if sampling.temperature >= _GREEDY_BELOW:
                seed = sampling.seed if sampling.seed is not None else self._seeds.getrandbits(63)
                generator = torch.Generator().manual_seed(seed & (2**64 - 1))
            if has_adjustments(sampling):
                adjustments = Adjustments(sampling, request.prompt, self._eos_token_ids, vocab)
            stream = self._streams[request.rid] = _Stream(generator, adjustments)
        return stream


def _portions(rows: list[int], vocab: int) -> Iterator[list[int]]:
    """Rows, so many at a time that their logits are _ELEMENTS at the most."""
    step = max(1, _ELEMENTS // vocab)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _chosen_logprobs(
    logits: torch.Tensor,
    requests: Sequence[SamplingState],
    tokens: Sequence[int],
    broken: dict[int, BrokenLogits],
) -> dict[int, TokenLogprob]:
    """The logprobs of the rows whose requests want them, each with as many of the likeliest as it wants."""
    wanted = {
        row: request.sampling.logprobs
        for row, request in enumerate(requests)
        if request.sampling.logprobs is not None and row not in broken
    }
    if not wanted:
        return {}
    rows = list(wanted)
    found = token_logprobs(take(logits, rows), [tokens[row] for row in rows], max(wanted.values()))
    return {
        row: TokenLogprob(each.logprob, each.top[: wanted[row]])
        for row, each in zip(rows, found, strict=True)
    }
