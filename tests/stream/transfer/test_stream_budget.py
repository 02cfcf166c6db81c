"""The budget: the process's connections, shared out fairly."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.transfer.budget import ConnectionBudget, fair_shares
from tests.profiles import examples

SEEDED = settings(max_examples=examples(80))


@SEEDED
@given(st.integers(1, 100), st.lists(st.integers(0, 100), max_size=12))
def test_shares_are_within_wishes_and_limit_and_leave_nothing_that_is_wished(
    limit: int, wishes: list[int]
) -> None:
    shares = fair_shares(limit, wishes)
    assert all(0 <= share <= wish for share, wish in zip(shares, wishes, strict=True))
    assert sum(shares) == min(limit, sum(wishes))


@SEEDED
@given(st.integers(1, 100), st.lists(st.integers(0, 100), min_size=1, max_size=12))
def test_nobody_with_an_unmet_wish_has_less_than_another_by_more_than_one(
    limit: int, wishes: list[int]
) -> None:
    shares = fair_shares(limit, wishes)
    for share, wish in zip(shares, wishes, strict=True):
        if share < wish:
            assert max(shares) <= share + 1


def test_what_one_does_not_want_the_others_share() -> None:
    assert fair_shares(64, [4, 64, 64]) == [4, 30, 30]


def test_one_transfer_may_have_all() -> None:
    assert ConnectionBudget(64).join().share(100) == 64


def test_a_second_transfer_halves_the_share_of_the_first() -> None:
    budget = ConnectionBudget(64)
    first, second = budget.join(), budget.join()
    assert first.share(64) == 64
    assert second.share(64) == 32
    assert first.share(64) == 32
    second.leave()
    assert first.share(64) == 64


def test_no_more_connections_are_taken_than_there_are() -> None:
    budget = ConnectionBudget(2)
    first, second = budget.join(), budget.join()
    assert first.take()
    assert first.take()
    assert not second.take()
    first.give_back()
    assert second.take()


def test_a_transfer_that_left_counts_until_it_gives_back() -> None:
    budget = ConnectionBudget(1)
    first, second = budget.join(), budget.join()
    assert first.take()
    first.leave()
    assert not second.take()
    first.give_back()
    assert second.take()


def test_threads_that_take_at_once_never_hold_more_than_the_limit() -> None:
    budget = ConnectionBudget(3)
    most: list[int] = []
    held: list[int] = []

    def use() -> None:
        member = budget.join()
        for _ in range(300):
            if member.take():
                held.append(1)
                most.append(len(held))
                held.pop()
                member.give_back()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most
    assert max(most) <= 3
