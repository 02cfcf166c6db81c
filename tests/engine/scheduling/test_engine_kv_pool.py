"""Pages of the KV cache: nobody gets what another holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.scheduling.kv_pool import PagePool


@given(
    page_count=st.integers(1, 40),
    turns=st.lists(st.tuples(st.booleans(), st.integers(0, 15)), max_size=60),
)
def test_no_page_is_held_twice_whatever_is_taken_and_given_back(
    page_count: int, turns: list[tuple[bool, int]]
) -> None:
    pool = PagePool(page_count, 4)
    holders: list[list[int]] = []
    for takes, number in turns:
        if takes and number <= pool.free_count:
            holders.append(pool.allocate(number))
            assert len(holders[-1]) == number
        elif not takes and holders:
            pool.release(holders.pop(number % len(holders)))
        held = [page for pages in holders for page in pages]
        assert len(held) == len(set(held))
        assert set(held) <= set(range(page_count))
        assert pool.free_count == page_count - len(held)


def test_a_lone_request_gets_neighbouring_pages_also_after_others_have_left() -> None:
    pool = PagePool(12, 16)
    first, second = pool.allocate(3), pool.allocate(4)
    pool.release(second)
    pool.release(first)
    assert pool.allocate(7) == list(range(7))


def test_the_lowest_free_pages_are_taken_first() -> None:
    pool = PagePool(8, 16)
    first, _second = pool.allocate(2), pool.allocate(2)
    pool.release(first)
    assert pool.allocate(3) == [0, 1, 4]


def test_giving_back_what_is_not_held_is_a_defect() -> None:
    pool = PagePool(4, 16)
    pages = pool.allocate(2)
    pool.release(pages)
    with pytest.raises(AssertionError, match="page 0 is not held"):
        pool.release(pages)


def test_asking_for_more_than_is_free_is_a_defect_and_takes_nothing() -> None:
    pool = PagePool(4, 16)
    with pytest.raises(AssertionError, match="5 pages asked for, 4 are free"):
        pool.allocate(5)
    assert pool.free_count == 4


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_part_of_a_page_is_a_page(tokens: int, pages: int) -> None:
    assert PagePool(8, 16).pages_for(tokens) == pages
