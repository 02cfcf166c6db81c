"""What the front counts: plain numbers on the event loop. `metric_families` names them for Prometheus."""

import bisect
import time
from collections import Counter
from collections.abc import Callable, Sequence

from headrace.ipc.messages import Generate, TokenOutput
from headrace.server.seen.request_trace import AnswerFacts, RequestTrace, current

# Upper bounds in seconds. The finest steps are where a reader of text feels a difference.
FIRST_TOKEN_BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 60, 120, 300, 600,
)  # fmt: skip
INTER_TOKEN_BOUNDS_S = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10,
)  # fmt: skip
REQUEST_BOUNDS_S = (
    0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 180, 300, 600, 1200, 1800,
)  # fmt: skip

GENERATING_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})

Clock = Callable[[], float]


class Histogram:
    """Counts of values by upper bounds.

    Attributes:
        bounds: ascending.
        counts: values ≤ the bound of the same index and > the one before; the last counts those above all.
        total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, as if it had come so many times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times


class ServerMetrics:
    """The counters of one server, from its start.

    Attributes:
        http_requests_active: requests that are being answered.
        responses: (route, method, status) → answers.
        requests: (route, outcome) → requests for text that ended: "finished", "refused" (4xx, or 503: not now),
            "failed" (any other 5xx, or an error after the answer had begun), "aborted" (the client left, or the
            server's end cut the answer off).
        finished: finish reason → choices that the engine ended.
        prompt_tokens, cached_tokens: of prompts whose first token came; a prompt counts once, however many choices.
        generation_tokens: tokens that the engine made for clients.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.http_requests_active = 0
        self.responses: Counter[tuple[str, str, int]] = Counter()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.finished: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.time_to_first_token = Histogram(FIRST_TOKEN_BOUNDS_S)
        self.inter_token_latency = Histogram(INTER_TOKEN_BOUNDS_S)
        self.request_latency = Histogram(REQUEST_BOUNDS_S)

    def count_response(self, trace: RequestTrace, status: int, now_s: float) -> None:
        """Count a request that has ended, by the status of its answer."""
        self.responses[trace.route, trace.method, status] += 1
        if trace.route in GENERATING_ROUTES and trace.method == "POST":
            outcome = outcome_of(trace, status)
            self.requests[trace.route, outcome] += 1
            if outcome == "finished":
                self.request_latency.observe(now_s - trace.arrived_s)

    def of_answer(self, generates: Sequence[Generate], best_of: int) -> "AnswerMeter":
        """The meter of the generations of the current request; `best_of` of them have the same prompt."""
        trace, now_s = current(), self.clock()
        prompts = {generate.rid: len(generate.input_ids) for generate in generates[::best_of]}
        facts = AnswerFacts(
            rids=tuple(generate.rid for generate in generates),
            sampling=generates[0].sampling,
            sent_s=now_s,
            prompt_tokens=sum(prompts.values()),
        )
        if trace is not None:
            trace.answer = facts
        return AnswerMeter(self, trace.arrived_s if trace is not None else now_s, prompts, facts)


class AnswerMeter:
    """Counts the outputs of one request's generations as they come from the engine."""

    __slots__ = ("_arrived_s", "_facts", "_last_s", "_metrics", "_prompts")

    def __init__(
        self, metrics: ServerMetrics, arrived_s: float, prompts: dict[str, int], facts: AnswerFacts
    ) -> None:
        """`prompts`: the length of each prompt, by the rid of its first choice. `facts` is kept up to date."""
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._prompts = prompts
        self._last_s: dict[str, float] = {}
        self._facts = facts

    def count(self, output: TokenOutput) -> None:
        """Count an output that has just come."""
        metrics, facts = self._metrics, self._facts
        now_s, tokens = metrics.clock(), len(output.token_ids)
        prompt_tokens = self._prompts.pop(output.rid, None)
        if prompt_tokens is not None:
            metrics.prompt_tokens += prompt_tokens
            metrics.cached_tokens += output.cached_tokens
            facts.cached_tokens += output.cached_tokens
        if tokens:
            facts.completion_tokens += tokens
            facts.last_token_s = now_s
            if facts.first_token_s is None:
                facts.first_token_s = now_s
                metrics.time_to_first_token.observe(now_s - self._arrived_s)
            last_s = self._last_s.get(output.rid)
            if last_s is not None:
                metrics.inter_token_latency.observe((now_s - last_s) / tokens, tokens)
            self._last_s[output.rid] = now_s
            metrics.generation_tokens += tokens
        if output.finish_reason is not None:
            metrics.finished[output.finish_reason] += 1
            facts.finish_reasons[output.rid] = output.finish_reason

    def stopped(self, rid: str) -> None:
        """A stop string has ended this choice: the engine is not asked for more."""
        self._facts.finish_reasons[rid] = "stop"


def outcome_of(trace: RequestTrace, status: int) -> str:
    """How a request for text ended, as ServerMetrics names it."""
    if trace.failed:
        return "failed"
    if not trace.complete:
        return "aborted"
    if status < 400:
        return "finished"
    return "refused" if status < 500 or status == 503 else "failed"
