"""When the engine tells how busy it is, and what it tells."""

import msgspec

from headrace.engine.load_meter import LoadMeter, load_of
from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.request import Request
from headrace.engine.scheduling.scheduler import Scheduler
from headrace.ipc.messages import EngineLoad, SamplingParams

PAGE = 4


class Bench:
    """A scheduler of 100 pages with room for one running request, a meter, and a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.scheduler = Scheduler(PagePool(100, PAGE), max_running_requests=1)
        self.meter = LoadMeter(self.scheduler, lambda: self.now_s)

    def add(self, rid: str, prompt: list[int], answer: int = 3) -> None:
        self.scheduler.add(Request(rid, prompt, SamplingParams(max_tokens=answer)))

    def step(self) -> None:
        step = self.scheduler.plan(64)
        self.scheduler.commit(step, [9] * len(step.sampled()), frozenset())


def test_an_engine_that_has_done_nothing_has_nothing_to_tell() -> None:
    assert Bench().meter.news() is None


def test_running_and_waiting_requests_and_their_places_are_counted() -> None:
    bench = Bench()
    bench.add("a", [1] * 10)
    bench.add("b", [2] * 10)
    bench.step()
    assert bench.meter.news() == EngineLoad(running=1, waiting=1, kv_used_tokens=3 * PAGE, steps=1)


def test_while_it_computes_it_is_told_again_only_after_a_while() -> None:
    bench = Bench()
    bench.add("a", [1] * 10, answer=20)
    bench.step()
    assert bench.meter.news() is not None
    bench.add("b", [2] * 10)
    bench.step()
    assert bench.meter.news() is None
    bench.now_s = 0.19
    assert bench.meter.news() is None
    bench.now_s = 0.2
    news = bench.meter.news()
    assert news is not None and news.waiting == 1


def test_steps_that_change_nothing_else_are_told_as_a_sign_of_life() -> None:
    bench = Bench()
    bench.add("a", [1] * (PAGE - 3), answer=20)
    bench.step()
    first = bench.meter.news()
    assert first is not None
    bench.step()
    bench.now_s = 0.2
    assert bench.meter.news() == msgspec.structs.replace(first, steps=2)
    bench.now_s = 0.4
    assert bench.meter.news() is None


def test_the_end_of_all_work_is_told_at_once_and_once() -> None:
    bench = Bench()
    bench.add("a", [1] * 8, answer=1)
    assert bench.meter.news() is not None
    bench.step()
    assert bench.meter.news() == EngineLoad(kv_cached_tokens=2 * PAGE, steps=1)
    bench.now_s = 100.0
    assert bench.meter.news() is None


def test_what_a_request_builds_on_is_used_and_not_evictable() -> None:
    bench = Bench()
    bench.add("a", [1] * 8, answer=1)
    bench.step()
    bench.add("b", [1] * 8 + [2, 3])
    bench.step()
    assert load_of(bench.scheduler) == EngineLoad(running=1, kv_used_tokens=3 * PAGE, steps=2)


def test_requests_that_lost_their_places_are_counted() -> None:
    scheduler = Scheduler(PagePool(4, PAGE), max_running_requests=2, prefix_cache=False)
    for rid in ("a", "b"):
        scheduler.add(Request(rid, [1] * 6, SamplingParams(max_tokens=8)))
    while scheduler.has_work:
        step = scheduler.plan(64)
        scheduler.commit(step, [9] * len(step.sampled()), frozenset())
    assert load_of(scheduler) == EngineLoad(retractions=1, steps=13)
