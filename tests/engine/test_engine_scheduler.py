"""Who is computed next: examples, one rule each. Random histories are in test_engine_scheduler_histories.py."""

import pytest

from headrace.engine.kv_pool import PagePool
from headrace.engine.scheduler import Request, Scheduler
from headrace.ipc.messages import SamplingParams, TokenOutput

END = 2


def scheduler(pages: int = 100, page_size: int = 4, running: int = 8, budget: int = 16) -> Scheduler:
    return Scheduler(PagePool(pages, page_size), max_running_requests=running, prefill_budget=budget)


def request(rid: str, prompt: int, answer: int = 4, **sampling: object) -> Request:
    return Request(rid, [7] * prompt, SamplingParams(max_tokens=answer, **sampling))  # type: ignore[arg-type]


def turn(engine: Scheduler, token: int = 9) -> list[TokenOutput]:
    """One step in which every sampled request gets `token`."""
    step = engine.plan()
    return engine.commit(step, [token] * len(step.sampled()), frozenset({END}))


def test_prompts_share_the_budget_oldest_first() -> None:
    engine = scheduler(budget=10)
    for rid, prompt in [("a", 6), ("b", 8), ("c", 3)]:
        engine.add(request(rid, prompt))
    assert [(r.rid, count) for r, count in engine.plan().prefills] == [("a", 6), ("b", 4)]


def test_a_long_prompt_is_computed_in_chunks_and_gives_its_first_token_with_the_last() -> None:
    engine = scheduler(budget=4)
    engine.add(request("a", 10))
    assert turn(engine) == []
    assert turn(engine) == []
    assert turn(engine) == [TokenOutput("a", (9,))]


def test_a_decoding_request_gets_its_token_while_a_long_prompt_is_computed() -> None:
    engine = scheduler(budget=4)
    engine.add(request("short", 2))
    turn(engine)
    engine.add(request("long", 40))
    for _ in range(2):
        assert turn(engine) == [TokenOutput("short", (9,))]


def test_a_request_joins_between_two_steps_of_others() -> None:
    engine = scheduler()
    engine.add(request("a", 3))
    turn(engine)
    engine.add(request("b", 3))
    step = engine.plan()
    assert [r.rid for r, _ in step.prefills] == ["b"]
    assert [r.rid for r in step.decodes] == ["a"]
    assert [r.rid for r in step.sampled()] == ["b", "a"]


def test_a_request_waits_until_pages_for_its_whole_answer_are_free() -> None:
    engine = scheduler(pages=4, page_size=4)
    engine.add(request("a", 8, answer=4))  # 3 pages
    engine.add(request("b", 4, answer=4))  # 2 pages
    turn(engine)
    assert (engine.running_count, engine.waiting_count) == (1, 1)
    while engine.running_count == 1 and engine.waiting_count:
        turn(engine)
    assert [r.rid for r in engine.requests()] == ["b"]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    engine = scheduler(pages=4, page_size=4)
    for rid, prompt in [("a", 8), ("large", 12), ("small", 1)]:
        engine.add(request(rid, prompt, answer=1))
    turn(engine)
    assert [r.rid for r in engine.requests()] == ["large", "small"]
    assert engine.pool.free_count == 4


def test_no_more_run_at_once_than_allowed() -> None:
    engine = scheduler(running=2)
    for rid in "abc":
        engine.add(request(rid, 1))
    engine.plan()
    assert (engine.running_count, engine.waiting_count) == (2, 1)


def test_the_answer_ends_at_its_length() -> None:
    engine = scheduler()
    engine.add(request("a", 1, answer=2))
    assert turn(engine) == [TokenOutput("a", (9,))]
    assert turn(engine) == [TokenOutput("a", (9,), "length")]
    assert not engine.has_work


def test_the_models_own_end_ends_the_answer_and_is_named() -> None:
    engine = scheduler()
    engine.add(request("a", 1))
    assert turn(engine, token=END) == [TokenOutput("a", (END,), "stop", END)]
    assert not engine.has_work


def test_the_end_at_the_last_allowed_token_counts_as_a_stop() -> None:
    engine = scheduler()
    engine.add(request("a", 1, answer=1))
    assert turn(engine, token=END) == [TokenOutput("a", (END,), "stop", END)]


def test_ignore_eos_goes_on_over_the_models_own_end() -> None:
    engine = scheduler()
    engine.add(request("a", 1, ignore_eos=True))
    assert turn(engine, token=END) == [TokenOutput("a", (END,))]


def test_a_stop_token_of_the_request_ends_it_even_with_ignore_eos() -> None:
    engine = scheduler()
    engine.add(request("a", 1, stop_token_ids=(5,), ignore_eos=True))
    assert turn(engine, token=5) == [TokenOutput("a", (5,), "stop", 5)]


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["queued", "prefilling", "decoding"])
def test_an_aborted_request_gives_its_pages_back_in_every_state(steps: int) -> None:
    engine = scheduler(budget=4)
    engine.add(request("a", 8, answer=8))
    for _ in range(steps):
        turn(engine)
    assert engine.abort("a")
    assert not engine.has_work
    assert engine.pool.free_count == engine.pool.page_count


def test_aborting_an_unknown_request_says_so() -> None:
    engine = scheduler()
    engine.add(request("a", 1))
    assert not engine.abort("b")
    assert engine.has_work


@pytest.mark.parametrize(("prompt", "fits"), [(12, True), (13, False)])
def test_a_request_fits_if_the_empty_pool_holds_prompt_and_answer(prompt: int, fits: bool) -> None:
    assert scheduler(pages=4, page_size=4).fits(request("a", prompt, answer=4)) is fits
