"""Who is computed next: continuous batching with chunked prefill, as pure code over a page pool.

A request is admitted when pages for its prompt and its whole answer are free, so what runs can finish.
Each step every decoding request gets its token, and prompts share a budget of their own, oldest first.
Requests join and leave between any two steps.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engine.kv_pool import PagePool
from headrace.ipc.messages import SamplingParams, TokenOutput


@dataclass(slots=True, eq=False)
class Request:
    """One prompt on its way.

    Attributes:
        computed: tokens (prompt first, then answer) whose keys and values are in the pool.
        pages: pages held, enough for prompt and answer, from admission to the end.
    """

    rid: str
    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def most_tokens(self) -> int:
        """Slots that it needs at the most: its last token is never computed, but counted for simplicity."""
        return len(self.prompt) + self.sampling.max_tokens

    @property
    def is_decoding(self) -> bool:
        """The whole prompt is computed and a first token is there."""
        return bool(self.output)


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward pass computes.

    Attributes:
        prefills: requests with how many of their next prompt tokens are computed.
        decodes: requests whose last token is computed.
    """

    prefills: tuple[tuple[Request, int], ...]
    decodes: tuple[Request, ...]

    def sampled(self) -> list[Request]:
        """The requests that get a token from this step: finished prompts, then decodes."""
        finished = [r for r, count in self.prefills if r.computed + count == len(r.prompt)]
        return finished + list(self.decodes)


class Scheduler:
    """The requests of one engine. Not thread-safe."""

    def __init__(self, pool: PagePool, *, max_running_requests: int, prefill_budget: int) -> None:
        """`prefill_budget`: prompt tokens computed in one step at the most."""
        assert max_running_requests > 0 and prefill_budget > 0
        self.pool = pool
        self._most_running = max_running_requests
        self._budget = prefill_budget
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether `plan` would give a step with something in it."""
        return bool(self._waiting or self._running)

    @property
    def waiting_count(self) -> int:
        """Requests that are not admitted yet."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Admitted requests."""
        return len(self._running)

    def fits(self, request: Request) -> bool:
        """Whether the request could run in an empty pool."""
        return self.pool.pages_for(request.most_tokens) <= self.pool.page_count

    def add(self, request: Request) -> None:
        """Queue a request, which must fit and ask for something."""
        assert request.prompt and request.sampling.max_tokens > 0 and self.fits(request)
        self._waiting.append(request)

    def abort(self, rid: str) -> bool:
        """Forget a request in whatever state it is; False if there is none of that id."""
        for request in self._running:
            if request.rid == rid:
                self._end(request)
                return True
        for request in self._waiting:
            if request.rid == rid:
                self._waiting.remove(request)
                return True
        return False

    def requests(self) -> list[Request]:
        """All requests, running first."""
        return [*self._running, *self._waiting]

    def plan(self) -> Step:
        """Admit what fits and choose the next step's work."""
        while self._waiting and len(self._running) < self._most_running:
            pages = self.pool.pages_for(self._waiting[0].most_tokens)
            if pages > self.pool.free_count:
                break  # first come, first served: nobody overtakes the head of the queue
            request = self._waiting.popleft()
            request.pages = self.pool.allocate(pages)
            self._running.append(request)
        budget = self._budget
        prefills: list[tuple[Request, int]] = []
        for request in self._running:
            if request.is_decoding or budget == 0:
                continue
            count = min(budget, len(request.prompt) - request.computed)
            prefills.append((request, count))
            budget -= count
        return Step(tuple(prefills), tuple(request for request in self._running if request.is_decoding))

    def commit(self, step: Step, tokens: Sequence[int], eos_token_ids: frozenset[int]) -> list[TokenOutput]:
        """Record what a step computed: one token for each of `step.sampled()`, in that order."""
        sampled = step.sampled()
        assert len(tokens) == len(sampled)
        for request, count in step.prefills:
            request.computed += count
        for request in step.decodes:
            request.computed += 1
        return [
            self._append(request, token, eos_token_ids)
            for request, token in zip(sampled, tokens, strict=True)
        ]

    def _append(self, request: Request, token: int, eos_token_ids: frozenset[int]) -> TokenOutput:
        request.output.append(token)
        sampling = request.sampling
        is_stop = token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids)
        if is_stop:
            self._end(request)
            return TokenOutput(request.rid, (token,), "stop", token)
        if len(request.output) == sampling.max_tokens:
            self._end(request)
            return TokenOutput(request.rid, (token,), "length")
        return TokenOutput(request.rid, (token,))

    def _end(self, request: Request) -> None:
        self._running.remove(request)
        self.pool.release(request.pages)
        request.pages = []
