"""Random histories of the scheduler over an imitated cache: whatever comes, goes, is cached, evicted or retracted,
every request gets the tokens that it would get alone, nobody is lost, and no page leaks. Now and then the model is
exchanged for another: every answer is wholly one model's.

The imitated model writes into each slot which prefix its keys stand for, and of which model, and reads all slots of a context before it
gives a token: a page that was shared wrongly, evicted too early or not computed anew shows at once.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.request import Request, Step
from headrace.engine.scheduling.scheduler import Scheduler
from headrace.ipc.messages import SamplingParams, TokenOutput

PAGES, PAGE_SIZE, RUNNING, BUDGET, END = 12, 4, 3, 7, 0


def next_token(model: int, prefix: tuple[int, ...]) -> int:
    """An imitated model's greedy choice."""
    return hash((model, prefix)) % 9  # 0 is the end of a sequence


def answer_alone(model: int, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """What the request gets when nobody else is there."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + sampling.max_tokens:
        tokens.append(next_token(model, tuple(tokens)))
        if tokens[-1] == END and not sampling.ignore_eos:
            break
    return tokens[len(prompt) :]


class ImitatedCache:
    """Slots that remember which model's keys of which prefix they hold."""

    def __init__(self) -> None:
        self.model = 0
        self.slots: dict[int, tuple[int, tuple[int, ...]]] = {}

    def compute(self, request: Request, count: int) -> int:
        """Compute the next `count` tokens; the model's choice after the last."""
        tokens = tuple(request.prompt + request.output)
        end = request.computed + count
        for position in range(request.computed):
            assert self.slots[self.slot(request, position)] == (self.model, tokens[: position + 1]), (
                "not this prefix's keys"
            )
        for position in range(request.computed, end):
            assert self.slot(request, position) // PAGE_SIZE not in request.pages[: request.shared]
            self.slots[self.slot(request, position)] = (self.model, tokens[: position + 1])
        return next_token(self.model, tokens[:end])

    def slot(self, request: Request, position: int) -> int:
        return request.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


class History(RuleBasedStateMachine):
    """Adds, aborts, flushes and steps in any order, beside a plain account of who is owed what."""

    prefix_cache = True
    priorities: st.SearchStrategy[int] = st.just(0)

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.engine = Scheduler(self.pool, max_running_requests=RUNNING, prefix_cache=self.prefix_cache)
        self.cache = ImitatedCache()
        self.count = 0
        self.alive: dict[str, Request] = {}
        self.answers: dict[str, list[int]] = {}
        self.begun_on: dict[str, int] = {}

    @rule(data=st.data(), length=st.integers(1, 30), answer=st.integers(1, 18), ignore_eos=st.booleans())
    def add(self, data: st.DataObject, length: int, answer: int, ignore_eos: bool) -> None:
        # Few different prompts, so that prefixes are shared.
        stem = data.draw(st.sampled_from([[1] * 30, [1] * 9 + [2] * 21, [3] * 30]))
        sampling = SamplingParams(
            max_tokens=answer,
            ignore_eos=ignore_eos,
            prompt_logprobs=data.draw(st.sampled_from([None, None, None, 0])),
        )
        request = Request(f"r{self.count}", stem[:length], sampling, data.draw(self.priorities))
        self.count += 1
        assert self.engine.fits(request)
        assert self.engine.add(request)
        self.alive[request.rid] = request
        self.answers[request.rid] = []

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.engine.abort(rid)
        del self.alive[rid]
        assert not self.engine.abort(rid)

    @rule()
    def flush(self) -> None:
        assert self.engine.flush_cache() == (not self.alive)
        if not self.alive:
            assert self.pool.free_count == PAGES

    @precondition(lambda self: self.engine.has_work)
    @rule(budget=st.integers(1, BUDGET))
    def step(self, budget: int) -> None:
        self.take_step(budget)

    @precondition(lambda self: self.engine.has_work)
    @rule(budget=st.integers(1, BUDGET))
    def abandon_a_step(self, budget: int) -> None:
        """It is planned, writes its keys and is never committed, as while weights arrive."""
        step = self.engine.plan(budget)
        for request, count in [*step.prefills, *((request, 1) for request in step.decodes)]:
            self.begun_on.setdefault(request.rid, self.cache.model)
            self.cache.compute(request, count)

    @precondition(lambda self: self.engine.has_work)
    @rule()
    def run_until_idle(self) -> None:
        self.finish()

    @rule()
    def hold(self) -> None:
        self.engine.hold()

    @rule()
    def let_in(self) -> None:
        self.engine.let_in()

    @precondition(lambda self: self.engine.is_holding)
    @rule()
    def exchange_the_model(self) -> None:
        """As a change of weights does: those who have begun run out, and the others get the new model."""
        self.run_out()
        assert all(not request.has_begun for request in self.alive.values())
        self.engine.forget_prefixes()
        assert self.pool.free_count == PAGES
        self.cache.model += 1
        self.engine.let_in()

    def take_step(self, budget: int) -> None:
        retractions = self.engine.retraction_count
        decoding = {r.rid for r in self.alive.values() if r.is_decoding and r.pages}
        step = self.engine.plan(budget)
        self.check(step, decoding, budget, self.engine.retraction_count > retractions)
        for name in [*(request.rid for request, _ in step.prefills), *(r.rid for r in step.decodes)]:
            if self.engine.is_holding:
                assert name in self.begun_on
            assert self.begun_on.setdefault(name, self.cache.model) == self.cache.model
        chosen = {
            request.rid: self.cache.compute(request, count)
            for request, count in [*step.prefills, *((request, 1) for request in step.decodes)]
        }
        sampled = step.sampled()
        tokens = [chosen[request.rid] for request in sampled]
        outputs = self.engine.commit(step, tokens, frozenset({END}))
        assert [output.rid for output in outputs] == [request.rid for request in sampled]
        for output in outputs:
            self.take(output)

    def check(self, step: Step, decoding: set[str], budget: int, retracted: bool) -> None:
        # Something is computed in every step, and nobody twice.
        names = [request.rid for request, _ in step.prefills] + [request.rid for request in step.decodes]
        assert names
        assert len(names) == len(set(names))
        decoded = {request.rid for request in step.decodes}
        assert decoded <= decoding
        # Only where pages have run out does somebody miss a step, and then those of the lowest rank. (One that was
        # retracted may be admitted again at once, with fewer of its tokens computed.)
        missing = [self.alive[rid] for rid in decoding - decoded]
        if missing:
            assert retracted or self.pool.free_count == 0
            best = min(request.rank for request in missing)
            assert all(self.alive[name].rank < best for name in set(names) - decoding)
            assert all(self.alive[name].rank < best for name in decoded)
        assert all(count > 0 for _, count in step.prefills)
        assert sum(count for _, count in step.prefills) <= budget
        assert self.engine.running_count <= RUNNING

    def take(self, output: TokenOutput) -> None:
        request = self.alive[output.rid]
        answer = self.answers[output.rid]
        answer += output.token_ids
        alone = answer_alone(self.begun_on[output.rid], request.prompt, request.sampling)
        assert answer == alone[: len(answer)]
        assert (output.finish_reason is not None) == (len(answer) == len(alone))
        if output.finish_reason is not None:
            stopped = answer[-1] == END and not request.sampling.ignore_eos
            assert output.finish_reason == ("stop" if stopped else "length")
            del self.alive[output.rid]

    def finish(self) -> None:
        """Whoever is left gets an answer in a bounded number of steps."""
        self.engine.let_in()
        self.run_out()
        assert not self.alive
        assert self.engine.flush_cache()
        assert self.pool.free_count == PAGES

    def run_out(self) -> None:
        """Nothing is left to compute after a bounded number of steps."""
        owed = sum(len(r.prompt) + r.sampling.max_tokens for r in self.alive.values())
        for _ in range(owed * (len(self.alive) + 1)):
            if not self.engine.has_work:
                break
            self.take_step(BUDGET)
        assert not self.engine.has_work

    def teardown(self) -> None:
        self.finish()

    @invariant()
    def nobody_is_lost(self) -> None:
        assert {request.rid for request in self.engine.requests()} == set(self.alive)

    @invariant()
    def every_page_is_free_or_cached_or_one_requests_own(self) -> None:
        own = [page for request in self.alive.values() for page in request.pages[request.shared :]]
        assert len(own) == len(set(own))
        assert self.pool.free_count == PAGES - len(own) - self.engine.cached_page_count
        for request in self.alive.values():
            assert request.computed <= len(request.pages) * PAGE_SIZE
            assert request.computed < request.length

    @invariant()
    def those_who_run_are_never_of_lower_rank_than_a_retracted_one(self) -> None:
        running = [request for request in self.engine.requests() if request.pages]
        waiting_with_output = [r for r in self.alive.values() if r.output and not r.pages]
        for waiting in waiting_with_output:
            admitted_later = [r for r in running if r.rank > waiting.rank and r.cached_tokens is None]
            assert not admitted_later


class HistoryWithoutCache(History):
    """The same with --disable-radix-cache."""

    prefix_cache = False


class HistoryWithPriorities(History):
    """The same with --enable-priority-scheduling."""

    priorities = st.integers(-1, 1)


_SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistory = pytest.mark.property(History.TestCase)
TestHistory.settings = _SETTINGS
TestHistoryWithoutCache = pytest.mark.property(HistoryWithoutCache.TestCase)
TestHistoryWithoutCache.settings = _SETTINGS
TestHistoryWithPriorities = pytest.mark.property(HistoryWithPriorities.TestCase)
TestHistoryWithPriorities.settings = _SETTINGS
