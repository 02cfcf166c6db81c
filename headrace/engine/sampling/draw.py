"""From logits to a draw: temperature, then top_k, top_p and min_p, all rows together.

The order is transformers' and SGLang's: top_p is a share of what top_k left, and min_p compares with the likeliest
whatever the others left out. (vLLM lets min_p go first, so that its top_p is a share of what min_p left.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.engine.sampling.vocab_blocks import largest, pick, ranked, reach, total
from headrace.ipc.messages import SamplingParams

# So many of the largest are looked at, for all rows together, then for those for which it was not enough. Few
# distributions of a trained model need more. What is found does not depend on how many were looked at.
_LOOKS = (64, 256)
_FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be drawn for some of the rows.

    Attributes:
        rows: the rows in question, [n].
        weights: [n, width]; proportional to the probabilities, 0 where something is left out. float32 for the
            whole vocabulary, float64 for a few.
        ids: int64 [n, width], the likeliest first, the lower first among equals; None where the weights are those
            of the vocabulary in order.
    """

    rows: list[int]
    weights: torch.Tensor
    ids: torch.Tensor | None


def draw(
    logits: torch.Tensor, peaks: torch.Tensor, samplings: Sequence[SamplingParams], shares: torch.Tensor
) -> torch.Tensor:
    """One id for each row, int64 [rows].

    logits: float32 [rows, vocab]; -inf is never drawn. peaks: float32 [rows], the largest of each row, finite.
    shares: float64 [rows], uniform in [0, 1): the only randomness. All on one device. A row's id depends on nothing
    but its own row, parameters and share.
    """
    chosen = torch.empty(len(samplings), dtype=torch.int64, device=logits.device)
    for some in candidates(logits, peaks, samplings):
        if some.ids is None:
            chosen[some.rows] = pick(some.weights, shares[some.rows])
        else:
            places, _ = reach(some.weights.cumsum(-1), shares[some.rows])
            chosen[some.rows] = some.ids.gather(1, places[:, None])[:, 0]
    return chosen


def candidates(
    logits: torch.Tensor, peaks: torch.Tensor, samplings: Sequence[SamplingParams]
) -> list[Candidates]:
    """The distributions from which `draw` draws; each row is in one of them."""
    vocab = logits.shape[1]
    unranked: list[int] = []
    to_rank: list[int] = []
    for row, sampling in enumerate(samplings):
        is_ranked = 1 <= sampling.top_k < vocab or sampling.top_p < 1
        (to_rank if is_ranked else unranked).append(row)
    found = []
    if unranked:
        limits = _limits([samplings[row] for row in unranked], vocab, logits.device)
        weights = _weights(take(logits, unranked), peaks[unranked], limits.temperature)
        if any(samplings[row].min_p > 0 for row in unranked):
            weights.masked_fill_(weights < limits.min_p, 0.0)
        found.append(Candidates(unranked, weights, None))
    if to_rank:
        found += _ranked_candidates(
            take(logits, to_rank), peaks[to_rank], [samplings[row] for row in to_rank], to_rank
        )
    return found


def take(rows: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """rows[indices]; a view where these follow each other, else a copy."""
    first, last = indices[0], indices[-1]
    if list(indices) == list(range(first, last + 1)):
        return rows[first : last + 1]
    return rows[list(indices)]


@dataclass(frozen=True, slots=True)
class _Limits:
    """Parameters of some rows as columns [rows, 1]: float32, int64 (the vocabulary's size where off), float64
    and float32."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def of(self, rows: list[int]) -> "_Limits":
        """Those of some of the rows."""
        return _Limits(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


def _limits(samplings: Sequence[SamplingParams], vocab: int, device: torch.device) -> _Limits:
    def column(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)[:, None]

    return _Limits(
        column([min(s.temperature, _FLOAT32_MAX) for s in samplings], torch.float32),
        column([min(s.top_k, vocab) if s.top_k >= 1 else vocab for s in samplings], torch.int64),
        column([s.top_p for s in samplings], torch.float64),
        column([s.min_p for s in samplings], torch.float32),
    )


def _weights(logits: torch.Tensor, peaks: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """exp(logits / temperature), float32 and scaled so that the largest is 1.

    The peak is taken away first, so that a small temperature gives -inf and not inf.
    """
    return (logits - peaks[:, None]).div_(temperature).exp_()


def _kept(weights: torch.Tensor, whole: torch.Tensor, limits: _Limits) -> torch.Tensor:
    """Which of the descending `weights` (float64 [rows, n], the first 1) stay: always a beginning of the row.

    whole: float64 [rows, 1], the weight of which top_p is a share.
    """
    before = weights.cumsum(-1) - weights
    position = torch.arange(weights.shape[1], device=weights.device)
    return (position < limits.top_k) & (before < limits.top_p * whole) & (weights >= limits.min_p)


def _ranked_candidates(
    logits: torch.Tensor, peaks: torch.Tensor, samplings: Sequence[SamplingParams], rows: list[int]
) -> list[Candidates]:
    vocab = logits.shape[1]
    limits = _limits(samplings, vocab, logits.device)
    # Without top_k, top_p is a share of the whole vocabulary; with it, of what top_k leaves.
    unlimited = [row for row, sampling in enumerate(samplings) if not 1 <= sampling.top_k < vocab]
    whole = torch.full_like(limits.top_p, float("nan"))
    if unlimited:
        all_weights = _weights(take(logits, unlimited), peaks[unlimited], limits.temperature[unlimited])
        whole[unlimited] = total(all_weights)[:, None]
    found: list[Candidates] = []
    left = list(range(len(rows)))
    for look in _LOOKS:
        tried = [row for row in left if row in unlimited or samplings[row].top_k < look]
        if tried:
            some, is_enough = _look(
                take(logits, tried),
                peaks[tried],
                limits.of(tried),
                whole[tried],
                [rows[row] for row in tried],
                look,
            )
            found += some
            done = {row for row, enough in zip(tried, is_enough, strict=True) if enough}
            left = [row for row in left if row not in done]
    for row in left:
        if row in unlimited:
            weights = all_weights[unlimited.index(row)]
            found.append(_wide_nucleus(logits[row], weights, limits.of([row]), whole[row], rows[row]))
        else:
            found.append(_wide_top_k(logits[row], peaks[row : row + 1], limits.of([row]), rows[row]))
    return found


def _look(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    limits: _Limits,
    whole: torch.Tensor,
    rows: list[int],
    count: int,
) -> tuple[list[Candidates], list[bool]]:
    """The candidates of those rows for which `count` of the largest are enough, and which these are.

    whole: float64 [rows, 1]; the sum of the row's weights, NaN where top_k is on.
    """
    vocab = logits.shape[1]
    values, ids, certain = largest(logits, count)
    weights = _weights(values, peaks, limits.temperature).double()
    last = limits.top_k.clamp(max=weights.shape[1]) - 1
    whole = torch.where(limits.top_k < vocab, weights.cumsum(-1).gather(1, last), whole)
    kept = _kept(weights, whole, limits)
    top_k = limits.top_k[:, 0]
    is_enough: list[bool] = ((kept.sum(-1) <= certain) & ((top_k <= certain) | (top_k == vocab))).tolist()
    done = [row for row, enough in enumerate(is_enough) if enough]
    if not done:
        return [], is_enough
    some = take(torch.where(kept, weights, 0.0), done)
    return [Candidates([rows[row] for row in done], some, take(ids, done))], is_enough


def _wide_nucleus(
    logits: torch.Tensor, weights: torch.Tensor, limits: _Limits, whole: torch.Tensor, row: int
) -> Candidates:
    """top_p of one row [vocab] whose nucleus is wider than a look, without sorting the vocabulary.

    What weighs less than a vocab-th of the share that top_p leaves out is not in the nucleus: all such ids together
    weigh less than that share.
    """
    # Half of it, since the whole was summed in float32.
    least = (1 - limits.top_p) * whole / len(weights) / 2
    _, ids = ranked(logits, (weights >= least[0]).nonzero()[:, 0])
    chosen = weights[ids].double()[None]
    kept = _kept(chosen, whole, limits)[0]
    return Candidates([row], chosen[:, kept], ids[kept][None])


def _wide_top_k(logits: torch.Tensor, peaks: torch.Tensor, limits: _Limits, row: int) -> Candidates:
    """top_k of one row [vocab] that reaches beyond a look, or ends among equals there."""
    top_k = int(limits.top_k)
    least = logits.topk(top_k).values[-1]
    values, ids = ranked(logits, (logits >= least).nonzero()[:, 0])
    values, ids = values[:top_k], ids[:top_k]
    weights = _weights(values[None], peaks, limits.temperature).double()
    kept = _kept(weights, weights.cumsum(-1)[:, -1:], limits)[0]
    return Candidates([row], weights[:, kept], ids[kept][None])
