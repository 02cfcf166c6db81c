"""Who is computed next: continuous batching with chunked prefill and a prefix cache, as pure code.

Requests wait in order of priority and arrival. One is admitted when what the running ones still need for the
tokens they have leaves room for all of its own. Each step every decoding request gets its token, and prompts
share a budget, first come first served. Pages are taken as tokens come; when they run out, cached prefixes go
first, then the request of lowest rank is retracted: it waits again with the tokens it has, and computes them
anew. A request that fits an empty pool can therefore always finish.
"""

import bisect
from collections.abc import Sequence

from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.prefix_tree import PageNode
from headrace.engine.scheduling.request import Request, Step
from headrace.engine.scheduling.request_pages import RequestPages
from headrace.ipc.messages import TokenOutput

# A prompt that is scored has the whole vocabulary's logits for each of its tokens in memory.
_SCORED_AT_ONCE = 128


class Scheduler:
    """The requests of one engine. Not thread-safe."""

    def __init__(
        self,
        pool: PagePool,
        *,
        max_running_requests: int,
        max_queued_requests: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        assert max_running_requests > 0
        self.pool = pool
        self._pages = RequestPages(pool, prefix_cache=prefix_cache)
        self._most_running = max_running_requests
        self._most_queued = max_queued_requests
        self._waiting: list[Request] = []  # by rank
        self._running: list[Request] = []  # by rank
        self._arrivals = 0
        self._retractions = 0
        self._steps = 0
        self._somebody_waits = False  # the last plan left requests in the queue
        self._holding = False

    # ---- state

    @property
    def has_work(self) -> bool:
        """Whether `plan` would give a step with something in it."""
        if self._running or not self._holding:
            return bool(self._running or self._waiting)
        return any(request.has_begun for request in self._waiting)

    @property
    def is_holding(self) -> bool:
        """Whether only requests that have begun are admitted."""
        return self._holding

    @property
    def has_decodes(self) -> bool:
        """Whether somebody waits for a next token."""
        return any(request.is_decoding for request in self._running)

    @property
    def waiting_count(self) -> int:
        """Requests that are not admitted."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Admitted requests."""
        return len(self._running)

    @property
    def retraction_count(self) -> int:
        """Retractions so far."""
        return self._retractions

    @property
    def step_count(self) -> int:
        """Steps that were committed so far."""
        return self._steps

    @property
    def cached_page_count(self) -> int:
        """Pages that the prefix cache owns."""
        return self._pages.cached_count

    @property
    def evictable_page_count(self) -> int:
        """Pages that the prefix cache would give up."""
        return self._pages.evictable_count

    def requests(self) -> list[Request]:
        """All requests, running first."""
        return [*self._running, *self._waiting]

    # ---- what the engine is told

    def hold(self) -> None:
        """Admit only requests that have begun, also those that were retracted, until `let_in`: all others wait."""
        self._holding = True

    def let_in(self) -> None:
        """Admit everybody again."""
        self._holding = False

    def fits(self, request: Request) -> bool:
        """Whether the request could run in an empty pool."""
        return self.pool.pages_for(request.most_tokens) <= self.pool.page_count

    def add(self, request: Request) -> bool:
        """Queue a request, which must fit and ask for something; False where the queue is full."""
        assert request.prompt and self.fits(request)
        assert request.sampling.max_tokens > 0 or request.sampling.prompt_logprobs is not None
        if self._most_queued is not None and len(self._waiting) >= self._most_queued + self._free_places():
            return False
        self._arrivals += 1
        request.arrival = self._arrivals
        bisect.insort(self._waiting, request, key=lambda item: item.rank)
        return True

    def abort(self, rid: str) -> bool:
        """Forget a request in whatever state it is; False if there is none of that id."""
        for request in self._running:
            if request.rid == rid:
                self._running.remove(request)
                self._pages.let_go(request)
                return True
        for request in self._waiting:
            if request.rid == rid:
                self._waiting.remove(request)
                return True
        return False

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while there are requests."""
        if self._running or self._waiting:
            return False
        self.forget_prefixes()
        return True

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. Nothing may be running; who waits computes all of its prompt."""
        assert not self._running
        self._pages.forget_prefixes()

    # ---- a step

    def plan(self, prefill_budget: int) -> Step:
        """Choose the next step's work, with `prefill_budget` prompt tokens at the most, and take pages for it.

        Gives a step with work whenever `has_work`. One that was not computed need not be committed: the next plan
        gives its requests the same work again.
        """
        assert prefill_budget > 0
        decodes: list[Request] = []
        for request in list(self._running):  # by rank: who is retracted comes later in it
            if request.is_decoding and request in self._running:
                grown = self._grow(request, 1)
                if grown:
                    decodes.append(request)
        decodes = [request for request in decodes if request in self._running]
        prefills: list[tuple[Request, int]] = []
        for request in list(self._running):
            if prefill_budget == 0 or request.is_decoding or request not in self._running:
                continue
            count = self._grow(request, _chunk(request, prefill_budget))
            if count:
                prefills.append((request, count))
                prefill_budget -= count
        if prefill_budget:
            prefills += self._admit(prefill_budget)
        self._somebody_waits = bool(self._waiting)
        return Step(
            tuple((request, count) for request, count in prefills if request in self._running),
            tuple(request for request in decodes if request in self._running),
        )

    def commit(
        self, step: Step, tokens: Sequence[int | None], eos_token_ids: frozenset[int]
    ) -> list[TokenOutput]:
        """Record what a step computed: one token for each of `step.sampled()`, in that order.

        None ends a request without an output (its logits were broken). Prompts that are only scored give an
        output without tokens, after the others.
        """
        sampled = step.sampled()
        assert len(tokens) == len(sampled)
        finished = step.finished_prefills()
        self._steps += 1
        for request, count in step.prefills:
            request.computed += count
        for request in step.decodes:
            request.computed += 1
        broken = {request.rid for request, token in zip(sampled, tokens, strict=True) if token is None}
        for request in finished:
            if request.rid not in broken:
                self._pages.share(request)
        outputs: list[TokenOutput] = []
        for request, token in zip(sampled, tokens, strict=True):
            if token is None:
                self._end(request, share=False)
            else:
                outputs.append(self._append(request, token, eos_token_ids))
        for request in finished:
            if request.sampling.max_tokens == 0:
                self._end(request)
                outputs.append(TokenOutput(request.rid, (), "length"))
        return outputs

    # ---- admission

    def _free_places(self) -> int:
        """How many of those who came since the last plan need not wait: its running requests left so many places."""
        return 0 if self._somebody_waits else self._most_running - len(self._running)

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        """Admit from the queue as long as there is budget and room; who it is and how much is computed."""
        admitted: list[tuple[Request, int]] = []
        for request in list(self._waiting):
            if budget == 0 or len(self._running) >= self._most_running:
                break
            if self._holding and not request.has_begun:
                continue
            node = self._pages.match(request)
            if self._sibling_is_computing(request, node):
                continue  # most of its prompt will be in the cache soon; others may pass
            if not self._has_room(request, node):
                break  # nobody overtakes who waits for pages
            self._waiting.remove(request)
            bisect.insort(self._running, request, key=lambda item: item.rank)
            self._pages.build_on(request, node)
            if request.cached_tokens is None:
                request.cached_tokens = request.computed
            count = self._grow(request, _chunk(request, budget))
            if count:
                admitted.append((request, count))
                budget -= count
        return admitted

    def _has_room(self, request: Request, node: PageNode | None) -> bool:
        if not self._running:
            return True  # it fits an empty pool, and everything cached can go
        owed = sum(self._pages.owed(other) for other in self._running)
        return self._pages.has_room(request, node, owed=owed)

    def _sibling_is_computing(self, request: Request, node: PageNode | None) -> bool:
        """Whether a running request is about to put a longer prefix of this one into the cache."""
        if not self._pages.can_build_on_others(request):
            return False
        size = self.pool.page_size
        cached = len(node.path()) if node is not None else 0
        for other in self._running:
            if other.is_decoding or other.computed >= len(other.prompt):
                continue
            pages = min(len(other.prompt), request.length - 1) // size
            end = (cached + 1) * size
            if pages > cached and other.prompt[:end] == request.tokens(0, end):
                return True
        return False

    # ---- room for tokens

    def _grow(self, request: Request, count: int) -> int:
        """Take pages for the next `count` tokens; for how many of them there is room now.

        Cached prefixes make room first, then running requests of lower rank.
        """
        while not self._pages.make_room(request, count):
            youngest = self._running[-1]
            if youngest is request:
                break
            self._retract(youngest)
        return self._pages.take(request, count)

    def _retract(self, request: Request) -> None:
        self._retractions += 1
        self._running.remove(request)
        self._pages.let_go(request)
        bisect.insort(self._waiting, request, key=lambda item: item.rank)

    # ---- ends

    def _append(self, request: Request, token: int, eos_token_ids: frozenset[int]) -> TokenOutput:
        sampling = request.sampling
        cached = request.cached_tokens or 0 if not request.output else 0
        request.output.append(token)
        is_stop = token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids)
        if is_stop:
            self._end(request)
            return TokenOutput(request.rid, (token,), "stop", token, cached)
        if len(request.output) == sampling.max_tokens:
            self._end(request)
            return TokenOutput(request.rid, (token,), "length", None, cached)
        return TokenOutput(request.rid, (token,), None, None, cached)

    def _end(self, request: Request, *, share: bool = True) -> None:
        self._running.remove(request)
        self._pages.let_go(request, share=share)


def _chunk(request: Request, budget: int) -> int:
    """Tokens of a prompt to compute next."""
    if request.is_scored:
        budget = min(budget, _SCORED_AT_ONCE)
    return min(budget, request.length - request.computed)
