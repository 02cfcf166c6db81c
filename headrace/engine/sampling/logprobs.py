"""How likely tokens were under the model's own distribution, before temperature, penalties and bias."""

from collections.abc import Sequence

import torch

from headrace.engine.sampling.vocab_blocks import largest, peak, ranked, total
from headrace.ipc.messages import TokenLogprob

# Logits that are worked on at a time (4 MiB): a long prompt's are many times that.
_ELEMENTS = 1 << 20
# Beyond what is asked for, so that equals at its end are told apart.
_SPARE = 16


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log-softmax of each row of `logits` (float32 [rows, vocab]) at its id, and at the `top` likeliest ids.

    The likeliest come in descending order, the lower id first among equals; the whole vocabulary where `top` is
    more. The sums are float64 over float32 exponentials; no more than 3 × 4 MiB (or three rows) are needed beside `logits`.
    A row of NaN gives NaN, and an id whose logit is -inf has -inf.
    """
    assert len(token_ids) == len(logits) and top >= 0
    found: list[TokenLogprob] = []
    step = max(1, _ELEMENTS // logits.shape[1])
    with torch.inference_mode():
        for start in range(0, len(logits), step):
            found += _logprobs(logits[start : start + step], token_ids[start : start + step], top)
    return found


def _logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    peaks = peak(logits)[1][:, None]
    norms = peaks.double() + total((logits - peaks).exp_()).log()[:, None]
    ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    own = (logits.gather(1, ids) - norms)[:, 0].tolist()
    if top == 0:
        return [TokenLogprob(logprob) for logprob in own]
    values, best = _likeliest(logits, top)
    likeliest = zip(best.tolist(), (values - norms).tolist(), strict=True)
    return [
        TokenLogprob(logprob, tuple(zip(top_ids, top_values, strict=True)))
        for logprob, (top_ids, top_values) in zip(own, likeliest, strict=True)
    ]


def _likeliest(logits: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids of exactly the `top` largest, the lower id first among equals."""
    top = min(top, logits.shape[1])
    values, ids, certain = largest(logits, top + _SPARE)
    values, ids = values[:, :top], ids[:, :top]
    for row in (certain < top).nonzero()[:, 0].tolist():
        # All that are as large as the last: which of its equals belong here, only their ids tell.
        places = (logits[row] >= values[row, -1]).nonzero()[:, 0]
        all_values, all_ids = ranked(logits[row], places)
        values[row], ids[row] = all_values[:top], all_ids[:top]
    return values, ids
