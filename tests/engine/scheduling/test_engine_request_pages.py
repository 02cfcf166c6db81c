"""Pages that requests take, share and give back, without anybody who decides."""

from headrace.engine.scheduling.kv_pool import PagePool
from headrace.engine.scheduling.request import Request
from headrace.engine.scheduling.request_pages import RequestPages
from headrace.ipc.messages import SamplingParams

PAGE = 4


def pages_of(count: int, *, cache: bool = True) -> RequestPages:
    return RequestPages(PagePool(count, PAGE), prefix_cache=cache)


def request(*prompt: int, scored: bool = False) -> Request:
    return Request("r", list(prompt), SamplingParams(max_tokens=4, prompt_logprobs=0 if scored else None))


def computed(pages: RequestPages, *prompt: int) -> Request:
    """A request whose prompt is computed."""
    made = request(*prompt)
    pages.build_on(made, pages.match(made))
    assert pages.take(made, len(prompt) - made.computed) == len(prompt) - made.computed
    made.computed = len(prompt)
    return made


def test_as_many_tokens_are_given_as_there_are_pages_for() -> None:
    pages = pages_of(2)
    one = request(*range(20))
    assert not pages.make_room(one, 20)
    assert pages.take(one, 20) == 2 * PAGE
    assert pages.take(one, 1) == 1  # the second page has room for it


def test_what_was_let_go_is_built_on_by_the_next_one_but_for_its_last_token() -> None:
    pages = pages_of(8)
    pages.let_go(computed(pages, *range(8)))
    assert pages.cached_count == 2
    again = computed(pages, *range(8))
    assert again.shared == 1
    assert pages.evictable_count == 1


def test_a_prompt_that_is_scored_builds_on_nothing() -> None:
    pages = pages_of(8)
    pages.let_go(computed(pages, *range(8)))
    assert not pages.can_build_on_others(request(*range(9), scored=True))
    assert pages.match(request(*range(9), scored=True)) is None
    assert pages.match(request(*range(9))) is not None


def test_cached_prefixes_make_room() -> None:
    pages = pages_of(3)
    pages.let_go(computed(pages, *range(12)))
    assert pages.pool.free_count == 0
    assert pages.make_room(request(*range(50, 58)), 8)
    assert pages.cached_count == 0


def test_a_prefix_that_is_in_use_makes_none() -> None:
    pages = pages_of(2)
    holder = computed(pages, *range(8))
    pages.share(holder)
    assert not pages.make_room(request(50), 1)
    assert not pages.has_room(request(50), None, owed=0)
    pages.let_go(holder)
    assert pages.has_room(request(50), None, owed=1)
    assert not pages.has_room(request(50), None, owed=2)


def test_a_request_owes_pages_for_what_it_has_and_the_next_token() -> None:
    pages = pages_of(8)
    one = request(*range(8))
    assert pages.owed(one) == 3
    pages.take(one, 8)
    assert pages.owed(one) == 1


def test_without_a_cache_everything_is_free_again() -> None:
    pages = pages_of(2, cache=False)
    pages.let_go(computed(pages, *range(8)))
    assert pages.pool.free_count == 2
    assert pages.match(request(*range(8))) is None


def test_two_that_computed_the_same_keep_it_once() -> None:
    pages = pages_of(4)
    first, second = computed(pages, *range(8)), computed(pages, *range(8))
    pages.share(first)
    changed = second.pages_changed
    pages.share(second)
    assert second.pages == first.pages
    assert second.pages_changed > changed
    assert pages.pool.free_count == 2


def test_what_may_not_be_shared_is_not_cached() -> None:
    pages = pages_of(2)
    pages.let_go(computed(pages, *range(8)), share=False)
    assert pages.cached_count == 0
    assert pages.pool.free_count == 2
