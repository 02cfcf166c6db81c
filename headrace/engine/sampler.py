"""From logits to token ids. All maths in float32; each request draws from its own generator."""

import random
from collections.abc import Sequence

import torch

from headrace.ipc.messages import SamplingParams

# Nucleus sampling looks at this many of the largest logits first: sorting a whole vocabulary costs 100 × more.
_PREFILTER = 1024
# Below this temperature nothing but the largest logit has a weight, and far below it float32 would divide by 0.
_GREEDY_BELOW = 1e-6


class Sampler:
    """Chooses tokens, and keeps the random streams of running requests.

    Without a seed of its own a request gets one from the engine's stream (`--random-seed`).
    """

    def __init__(self, random_seed: int | None) -> None:
        self._seeds = random.Random(random_seed)
        self._generators: dict[str, torch.Generator] = {}

    def forget(self, rid: str) -> None:
        """Drop a request's random stream."""
        self._generators.pop(rid, None)

    def sample(self, logits: torch.Tensor, requests: Sequence[tuple[str, SamplingParams]]) -> list[int]:
        """One token id for each row of `logits` (float32 [rows, vocab]) and its request (id, parameters).

        Greedy is the largest logit, the lowest id among equals; so is a temperature below 1e-6.
        """
        tokens: list[int] = torch.argmax(logits, dim=-1).tolist()
        for row, (rid, sampling) in enumerate(requests):
            if sampling.temperature >= _GREEDY_BELOW:
                tokens[row] = sample_row(logits[row], sampling, self._generator(rid, sampling))
        return tokens

    def _generator(self, rid: str, sampling: SamplingParams) -> torch.Generator:
        if rid not in self._generators:
            seed = sampling.seed if sampling.seed is not None else self._seeds.getrandbits(63)
            self._generators[rid] = torch.Generator().manual_seed(seed & (2**64 - 1))
        return self._generators[rid]


def sample_row(logits: torch.Tensor, sampling: SamplingParams, generator: torch.Generator) -> int:
    """Draw one id from float32 logits [vocab]: temperature, then top_k, then top_p."""
    probabilities, ids = candidates(logits.cpu(), sampling)
    choice = int(torch.multinomial(probabilities, 1, generator=generator))
    return choice if ids is None else int(ids[choice])


def candidates(logits: torch.Tensor, sampling: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What may be drawn: weights (not necessarily summing to 1) and their token ids, largest first.

    ids is None where the weights are those of the whole vocabulary in order.
    """
    vocab = logits.shape[-1]
    # The largest logit goes to 0 first, so that a small temperature gives -inf and not inf.
    scaled = (logits - logits.max()) / sampling.temperature
    if 1 <= sampling.top_k < vocab:
        values, ids = torch.topk(scaled, sampling.top_k)
        return _nucleus(torch.softmax(values, -1), sampling.top_p), ids
    if sampling.top_p >= 1:
        return torch.softmax(scaled, -1), None
    total = torch.logsumexp(scaled, -1)
    values, ids = torch.topk(scaled, min(_PREFILTER, vocab))
    probabilities = torch.exp(values - total)
    if float(probabilities.sum()) < sampling.top_p:
        values, ids = torch.sort(scaled, descending=True)
        probabilities = torch.exp(values - total)
    return _nucleus(probabilities, sampling.top_p), ids


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero what lies beyond the smallest set of largest probabilities that reaches top_p; the first stays."""
    before = torch.cumsum(probabilities, -1) - probabilities
    kept = torch.where(before < top_p, probabilities, 0.0)
    kept[0] = probabilities[0]
    return kept
