"""Random histories of the scheduler: whatever comes and goes, nobody is lost and no page leaks."""

from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.kv_pool import PagePool
from headrace.engine.scheduler import Request, Scheduler, Step
from headrace.ipc.messages import SamplingParams

PAGES, PAGE_SIZE, RUNNING, BUDGET, END = 12, 4, 3, 7, 0


class History(RuleBasedStateMachine):
    """Adds, aborts and steps in any order, beside a plain account of who is owed what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.engine = Scheduler(self.pool, max_running_requests=RUNNING, prefill_budget=BUDGET)
        self.count = 0
        self.alive: dict[str, Request] = {}  # in order of arrival
        self.answers: dict[str, list[int]] = {}

    @rule(prompt=st.integers(1, 30), answer=st.integers(1, 18), ignore_eos=st.booleans())
    def add(self, prompt: int, answer: int, ignore_eos: bool) -> None:
        rid = f"r{self.count}"
        self.count += 1
        request = Request(rid, [1] * prompt, SamplingParams(max_tokens=answer, ignore_eos=ignore_eos))
        assert self.engine.fits(request)
        self.engine.add(request)
        self.alive[rid] = request
        self.answers[rid] = []

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.engine.abort(rid)
        del self.alive[rid]
        assert not self.engine.abort(rid)

    @precondition(lambda self: self.engine.has_work)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.take_step(lambda: data.draw(st.sampled_from([END, 5, 6])))

    @precondition(lambda self: self.engine.has_work)
    @rule()
    def run_until_idle(self) -> None:
        self.finish()

    def take_step(self, choose: Callable[[], int]) -> None:
        decoding = {rid for rid, request in self.alive.items() if request.output}
        step = self.engine.plan()
        self.check(step, decoding)
        sampled = step.sampled()
        tokens = [choose() for _ in sampled]
        outputs = self.engine.commit(step, tokens, frozenset({END}))
        assert [output.rid for output in outputs] == [request.rid for request in sampled]
        for output, token in zip(outputs, tokens, strict=True):
            assert output.token_ids == (token,)
            self.answers[output.rid].append(token)
            self.check_end(output.rid, token, output.finish_reason)

    def check(self, step: Step, decoding: set[str]) -> None:
        # Decodes are in every step, and something is computed in every step.
        assert {request.rid for request in step.decodes} == decoding
        assert step.prefills or step.decodes
        # The budget is kept, and used: a prompt is left short only when the budget is spent.
        spent = sum(count for _, count in step.prefills)
        assert all(count > 0 for _, count in step.prefills)
        assert spent <= BUDGET
        running = [request for request in self.engine.requests() if request.pages]
        assert len(running) <= RUNNING
        owed = sum(len(r.prompt) - r.computed for r in running if not r.output)
        assert spent == min(BUDGET, owed)
        # First come, first served: those admitted are the oldest ones.
        assert [request.rid for request in running] == list(self.alive)[: len(running)]

    def check_end(self, rid: str, token: int, reason: str | None) -> None:
        request = self.alive[rid]
        full = len(self.answers[rid]) == request.sampling.max_tokens
        stopped = token == END and not request.sampling.ignore_eos
        assert reason == ("stop" if stopped else "length" if full else None)
        if reason is not None:
            assert request.output == self.answers[rid]
            del self.alive[rid]

    def finish(self) -> None:
        """Whoever is left gets an answer in a bounded number of steps."""
        owed = sum(len(r.prompt) + r.sampling.max_tokens for r in self.alive.values())
        for _ in range(owed):
            if not self.engine.has_work:
                break
            self.take_step(lambda: 5)
        assert not self.alive
        assert not self.engine.has_work
        assert self.pool.free_count == PAGES

    def teardown(self) -> None:
        self.finish()

    @invariant()
    def nobody_is_lost(self) -> None:
        assert [request.rid for request in self.engine.requests()] == list(self.alive)

    @invariant()
    def pages_are_held_once_and_by_the_living(self) -> None:
        held = [page for request in self.alive.values() for page in request.pages]
        assert len(held) == len(set(held))
        assert self.pool.free_count == PAGES - len(held)
        for request in self.alive.values():
            assert not request.pages or len(request.pages) * PAGE_SIZE >= request.most_tokens
            assert request.computed <= len(request.pages) * PAGE_SIZE


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
