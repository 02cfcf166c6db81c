"""Who is computed next: examples, one rule each. Random histories are in test_engine_scheduler_histories.py."""

import pytest

from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.request import Request, Step
from headrace.engine.scheduling.scheduler import Scheduler
from headrace.ipc.messages import SamplingParams, TokenOutput

END = 2
BUDGET = 16


def scheduler(
    pages: int = 100, page_size: int = 4, running: int = 8, queued: int | None = None, cache: bool = True
) -> Scheduler:
    return Scheduler(
        PagePool(pages, page_size),
        max_running_requests=running,
        max_queued_requests=queued,
        prefix_cache=cache,
    )


def request(
    rid: str, prompt: int | list[int], answer: int = 4, priority: int = 0, **sampling: object
) -> Request:
    """A request whose prompt no other name shares, unless it is given."""
    tokens = prompt if isinstance(prompt, list) else [100 + ord(rid[0])] * prompt
    return Request(rid, tokens, SamplingParams(max_tokens=answer, **sampling), priority)  # type: ignore[arg-type]


def turn(engine: Scheduler, token: int = 9, budget: int = BUDGET) -> list[TokenOutput]:
    """One step in which every sampled request gets `token`."""
    step = engine.plan(budget)
    return engine.commit(step, [token] * len(step.sampled()), frozenset({END}))


def prefills(step: Step) -> list[tuple[str, int]]:
    return [(r.rid, count) for r, count in step.prefills]


def finish(engine: Scheduler) -> None:
    while engine.has_work:
        turn(engine)


def everything_is_free(engine: Scheduler) -> bool:
    return engine.flush_cache() and engine.pool.free_count == engine.pool.page_count


def test_prompts_share_the_budget_oldest_first() -> None:
    engine = scheduler()
    for rid, prompt in [("a", 6), ("b", 8), ("c", 3)]:
        engine.add(request(rid, prompt))
    assert prefills(engine.plan(10)) == [("a", 6), ("b", 4)]


def test_a_long_prompt_is_computed_in_chunks_and_gives_its_first_token_with_the_last() -> None:
    engine = scheduler()
    engine.add(request("a", 10))
    assert turn(engine, budget=4) == []
    assert turn(engine, budget=4) == []
    assert turn(engine, budget=4) == [TokenOutput("a", (9,))]


def test_a_decoding_request_gets_its_token_while_a_long_prompt_is_computed() -> None:
    engine = scheduler()
    engine.add(request("short", 2))
    turn(engine)
    engine.add(request("long", 40))
    for _ in range(2):
        assert turn(engine, budget=4) == [TokenOutput("short", (9,))]


def test_a_request_joins_between_two_steps_of_others() -> None:
    engine = scheduler()
    engine.add(request("a", 3))
    turn(engine)
    engine.add(request("b", 3))
    step = engine.plan(BUDGET)
    assert prefills(step) == [("b", 3)]
    assert [r.rid for r in step.decodes] == ["a"]
    assert [r.rid for r in step.sampled()] == ["b", "a"]


def test_a_request_waits_until_there_is_room_for_its_prompt() -> None:
    engine = scheduler(pages=4)
    engine.add(request("a", 8, answer=4))
    engine.add(request("b", 8, answer=4))
    turn(engine)
    assert (engine.running_count, engine.waiting_count) == (1, 1)
    finish(engine)
    assert engine.retraction_count == 0
    assert everything_is_free(engine)


def test_nobody_overtakes_who_waits_for_pages() -> None:
    engine = scheduler(pages=4)
    for rid, prompt, answer in [("a", 8, 3), ("large", 12, 1), ("small", 1, 1)]:
        engine.add(request(rid, prompt, answer))
    turn(engine)
    assert [r.rid for r in engine.requests()] == ["a", "large", "small"]
    assert engine.running_count == 1


def test_no_more_run_at_once_than_allowed() -> None:
    engine = scheduler(running=2)
    for rid in "abc":
        engine.add(request(rid, 1))
    engine.plan(BUDGET)
    assert (engine.running_count, engine.waiting_count) == (2, 1)


def test_a_full_queue_takes_nobody_more() -> None:
    engine = scheduler(queued=2, running=1)
    engine.add(request("a", 1))
    turn(engine)
    assert engine.add(request("b", 1))
    assert engine.add(request("c", 1))
    assert not engine.add(request("d", 1))
    engine.abort("a")
    turn(engine)
    assert engine.add(request("d", 1))


def test_who_comes_while_places_are_free_does_not_count_as_waiting() -> None:
    engine = scheduler(queued=1, running=3)
    engine.add(request("a", 1))
    turn(engine)
    assert [engine.add(request(rid, 1)) for rid in "bcde"] == [True, True, True, False]
    turn(engine)
    assert (engine.running_count, engine.waiting_count) == (3, 1)


def test_behind_somebody_who_waits_for_pages_free_places_are_of_no_use() -> None:
    engine = scheduler(queued=1, pages=4, running=8)
    engine.add(request("a", 12, answer=4))
    engine.add(request("b", 12, answer=4))
    turn(engine)
    assert (engine.running_count, engine.waiting_count) == (1, 1)
    assert not engine.add(request("c", 1))


def test_a_higher_priority_is_admitted_first() -> None:
    engine = scheduler(running=1)
    for rid, priority in [("a", 0), ("b", 0), ("c", 1)]:
        engine.add(request(rid, 1, priority=priority))
    order = []
    while engine.has_work:
        order += [output.rid for output in turn(engine, token=END)]
    assert order == ["c", "a", "b"]


# ---- retraction


def test_when_pages_run_out_the_youngest_is_retracted_and_completes_later() -> None:
    engine = scheduler(pages=4, cache=False)
    engine.add(request("a", 4, answer=12))
    engine.add(request("b", 4, answer=8))
    answers: dict[str, list[int]] = {"a": [], "b": []}
    token = 10
    while engine.has_work:
        token += 1
        for output in turn(engine, token):
            answers[output.rid] += output.token_ids
    assert engine.retraction_count == 1
    assert [len(answers["a"]), len(answers["b"])] == [12, 8]
    assert everything_is_free(engine)


def test_a_retracted_request_keeps_its_tokens_and_computes_them_again() -> None:
    engine = scheduler(pages=4, cache=False)
    older, younger = request("a", 4, answer=12), request("b", 4, answer=8)
    engine.add(older)
    engine.add(younger)
    while engine.retraction_count == 0:
        turn(engine)
    kept = list(younger.output)
    assert kept
    assert (younger.pages, younger.computed) == ([], 0)
    while not younger.pages:
        turn(engine)
    assert younger.output[: len(kept)] == kept


def test_with_priorities_the_lowest_is_retracted_though_it_came_first() -> None:
    engine = scheduler(pages=4, cache=False)
    low, high = request("a", 4, answer=8, priority=0), request("b", 4, answer=8, priority=1)
    engine.add(low)
    turn(engine)
    engine.add(high)
    while engine.retraction_count == 0:
        turn(engine)
    assert not low.pages
    assert high.pages


# ---- prefix cache


def test_a_prompt_that_was_computed_before_is_computed_from_where_it_differs() -> None:
    engine = scheduler()
    engine.add(request("a", [1] * 8 + [2] * 3))
    finish(engine)
    engine.add(request("b", [1] * 8 + [3] * 5))
    step = engine.plan(BUDGET)
    assert prefills(step) == [("b", 5)]
    assert engine.commit(step, [9], frozenset())[0].cached_tokens == 8


def test_cached_tokens_are_told_once() -> None:
    engine = scheduler()
    for rid in "ab":
        engine.add(request(rid, [1] * 9, answer=3))
        counts = []
        while engine.has_work:
            counts += [output.cached_tokens for output in turn(engine)]
    assert counts == [8, 0, 0]


def test_the_answer_is_cached_too() -> None:
    engine = scheduler()
    engine.add(request("a", [1] * 6, answer=4))
    finish(engine)  # the last token is never computed
    engine.add(request("b", [1] * 6 + [9] * 4))
    assert prefills(engine.plan(BUDGET)) == [("b", 2)]


def test_at_least_one_token_is_computed_of_a_prompt_that_is_cached_whole() -> None:
    engine = scheduler()
    for _ in range(2):
        engine.add(request("a", [1] * 8, answer=1))
        step = engine.plan(BUDGET)
        engine.commit(step, [9], frozenset())
    assert prefills(step) == [("a", 4)]


def test_without_the_cache_every_prompt_is_computed() -> None:
    engine = scheduler(cache=False)
    for _ in range(2):
        engine.add(request("a", [1] * 8, answer=1))
        step = engine.plan(BUDGET)
        assert prefills(step) == [("a", 8)]
        engine.commit(step, [9], frozenset())


def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole() -> None:
    engine = scheduler()
    engine.add(request("a", [1] * 8, answer=1))
    finish(engine)
    engine.add(request("b", [1] * 8, answer=1, prompt_logprobs=0))
    assert prefills(engine.plan(BUDGET)) == [("b", 8)]


def test_the_same_prompt_asked_twice_at_once_is_computed_once_and_lets_others_pass() -> None:
    engine = scheduler()
    for rid, prompt in [("a", [1] * 12), ("b", [1] * 12), ("c", [5] * 3)]:
        engine.add(request(rid, prompt))
    assert prefills(engine.plan(BUDGET)) == [("a", 12), ("c", 3)]


def test_cached_prefixes_go_before_anybody_is_retracted() -> None:
    engine = scheduler(pages=4)
    engine.add(request("a", 8, answer=1))
    finish(engine)
    assert engine.cached_page_count == 2
    engine.add(request("b", 12, answer=4))
    finish(engine)
    assert engine.retraction_count == 0


def test_the_cache_is_not_flushed_under_a_request() -> None:
    engine = scheduler()
    engine.add(request("a", 8, answer=2))
    turn(engine)
    assert not engine.flush_cache()
    finish(engine)
    assert engine.flush_cache()
    assert engine.cached_page_count == 0


def test_what_broken_logits_ended_is_not_cached() -> None:
    engine = scheduler()
    engine.add(request("a", 8))
    step = engine.plan(4)
    engine.commit(step, [], frozenset())
    step = engine.plan(4)
    shared = engine.cached_page_count
    assert engine.commit(step, [None], frozenset()) == []
    assert not engine.has_work
    assert engine.cached_page_count == shared
    assert everything_is_free(engine)


# ---- ends


def test_the_answer_ends_at_its_length() -> None:
    engine = scheduler()
    engine.add(request("a", 1, answer=2))
    assert turn(engine) == [TokenOutput("a", (9,))]
    assert turn(engine) == [TokenOutput("a", (9,), "length")]
    assert not engine.has_work


def test_a_prompt_that_is_only_scored_ends_without_a_token() -> None:
    engine = scheduler()
    engine.add(request("a", 6, answer=0, prompt_logprobs=0))
    step = engine.plan(4)
    assert step.sampled() == []
    assert engine.commit(step, [], frozenset()) == []
    assert turn(engine) == [TokenOutput("a", (), "length")]
    assert everything_is_free(engine)


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
    engine = scheduler()
    engine.add(request("a", 8, answer=8))
    for _ in range(steps):
        turn(engine, budget=4)
    assert engine.abort("a")
    assert not engine.has_work
    assert everything_is_free(engine)


def test_aborting_an_unknown_request_says_so() -> None:
    engine = scheduler()
    engine.add(request("a", 1))
    assert not engine.abort("b")
    assert engine.has_work


@pytest.mark.parametrize(("prompt", "fits"), [(12, True), (13, False)])
def test_a_request_fits_if_the_empty_pool_holds_prompt_and_answer(prompt: int, fits: bool) -> None:
    assert scheduler(pages=4, page_size=4).fits(request("a", prompt, answer=4)) is fits
