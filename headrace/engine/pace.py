"""How much prompt one step computes while others wait for their next token. Pure: seconds are told."""

# A step with decoding requests in it should take about this long, so that nobody sees text stutter.
STEP_GOAL_S = 0.08
_LEAST_TOKENS = 16
_MEMORY = 0.7  # weight of what was known before a new observation


class PrefillPace:
    """A budget of prompt tokens a step: all of `limit` when nobody waits, else what fits the goal.

    It learns from the steps themselves what a prompt token costs on this machine, with this model, now.
    """

    def __init__(self, limit: int, goal_s: float = STEP_GOAL_S) -> None:
        assert limit > 0
        self._limit = limit
        self._goal_s = goal_s
        self._decode_s = 0.0
        self._token_s: float | None = None

    def budget(self, *, somebody_waits: bool) -> int:
        """Prompt tokens that the next step may compute, at least one."""
        if not somebody_waits or self._token_s is None:
            return self._limit
        fit = int((self._goal_s - self._decode_s) / self._token_s)
        return max(min(_LEAST_TOKENS, self._limit), min(self._limit, fit))

    def observe(self, *, prefill_tokens: int, decodes: int, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        if prefill_tokens == 0:
            if decodes:
                self._decode_s = _MEMORY * self._decode_s + (1 - _MEMORY) * seconds
            return
        # Short chunks cost what their fixed part costs: they say nothing of a token's price.
        if prefill_tokens < _LEAST_TOKENS:
            return
        # What decoding adds beside a prompt is less than what it costs alone: half is a fair guess.
        cost = max(1e-7, (seconds - (self._decode_s / 2 if decodes else 0.0)) / prefill_tokens)
        self._token_s = cost if self._token_s is None else _MEMORY * self._token_s + (1 - _MEMORY) * cost
