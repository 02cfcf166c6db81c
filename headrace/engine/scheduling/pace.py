"""How much prompt one step computes while others wait for their next token. Pure: seconds are told."""

# A step with decoding requests in it should take about this long, so that nobody sees text stutter. Less would cost
# the prompt too much: what every step costs, whatever it computes, is paid more often.
STEP_GOAL_S = 0.08
# Fewer would pay the step's fixed part (the weights, the context's keys) for next to nothing: ten decodes
# and 16 tokens of a prompt of 6,000 cost 77 ms of CPU with SmolLM2, with 32 tokens 96, with 64 tokens 134.
_LEAST_TOKENS = 32
_MEMORY = 0.7  # weight of what was known before a new observation
# Tokens grow dearer with their context, chunk by chunk: who believed it late would overstep the goal all along.
_MEMORY_OF_CHEAPER = 0.4


class PrefillPace:
    """A budget of prompt tokens a step: all of `limit` when nobody waits, else what fits the goal.

    It learns from the steps themselves what they cost on this machine, with this model, now: a step takes what one
    without a prompt takes (the weights are read once, for whatever is computed with them), and so much for each
    token of a prompt.
    """

    def __init__(self, limit: int, goal_s: float = STEP_GOAL_S) -> None:
        assert limit > 0
        self._limit = limit
        self._goal_s = goal_s
        self._base_s = 0.0
        self._token_s: float | None = None

    def budget(self, *, somebody_waits: bool) -> int:
        """Prompt tokens that the next step may compute, at least one."""
        if not somebody_waits or self._token_s is None:
            return self._limit
        # Where a step without a prompt takes most of the goal already, the prompt still gets as much time as that:
        # else it would crawl, paying the base again and again.
        spare_s = max(self._goal_s - self._base_s, self._base_s)
        fit = int(spare_s / self._token_s)
        return max(min(_LEAST_TOKENS, self._limit), min(self._limit, fit))

    def observe(self, *, prefill_tokens: int, decodes: int, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        if prefill_tokens == 0:
            if decodes:
                known = self._base_s or seconds
                self._base_s = _MEMORY * known + (1 - _MEMORY) * seconds
            return
        # Short chunks cost what their fixed part costs: they say nothing of a token's price.
        if prefill_tokens < min(_LEAST_TOKENS, self._limit):
            return
        # A base that was learned while the machine was busier must not make tokens look free.
        self._base_s = min(self._base_s, seconds / 2)
        cost = (seconds - self._base_s) / prefill_tokens
        known = cost if self._token_s is None else self._token_s
        memory = _MEMORY if cost < known else _MEMORY_OF_CHEAPER
        self._token_s = memory * known + (1 - memory) * cost
