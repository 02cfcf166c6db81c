"""Rates: the cap that is kept, and the floor below which a connection counts as stalled."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.transfer.rate import LEAST_BYTES_PER_S, TokenBucket, far_too_slow
from tests.profiles import examples

SEEDED = settings(max_examples=examples(80))


@SEEDED
@given(st.floats(1e3, 1e9), st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0, 0.5)), max_size=100))
def test_no_more_is_granted_than_the_cap_allows(bytes_per_s: float, asked: list[tuple[int, float]]) -> None:
    bucket = TokenBucket(bytes_per_s, 100.0)
    now, granted = 100.0, 0
    for wanted, passed_s in asked:
        now += passed_s
        granted += bucket.take(wanted, now)[0]
        assert granted <= (now - 100.0) * bytes_per_s + 1e-3 * granted


@SEEDED
@given(st.floats(1e4, 1e9), st.integers(1, 1 << 24))
def test_who_waits_as_long_as_told_is_served_at_the_cap(bytes_per_s: float, wanted: int) -> None:
    bucket = TokenBucket(bytes_per_s, 0.0)
    now, left = 0.0, wanted
    for _ in range(200):
        granted, wait_s = bucket.take(left, now)
        left -= granted
        if left == 0:
            break
        now += wait_s * 1.0001 + 1e-9 if not granted else 0.0
    assert wanted - left >= 0.95 * min(wanted, now * bytes_per_s)


def test_what_did_not_come_is_given_back() -> None:
    bucket = TokenBucket(1_000_000, 0.0)
    granted, _ = bucket.take(50_000, 1.0)
    assert granted == 50_000
    assert bucket.take(50_000, 1.0)[0] == 0
    bucket.give_back(50_000)
    assert bucket.take(50_000, 1.0)[0] == 50_000


def test_an_idle_minute_does_not_make_a_burst() -> None:
    bucket = TokenBucket(1_000_000, 0.0)
    granted = sum(bucket.take(1 << 20, 60.0)[0] for _ in range(10))
    assert granted <= 50_000


def test_one_below_the_least_rate_trickles() -> None:
    assert far_too_slow([LEAST_BYTES_PER_S - 1]) == [0]
    assert far_too_slow([LEAST_BYTES_PER_S + 1]) == []


def test_a_slow_link_that_all_share_is_nobodys_trickle() -> None:
    assert far_too_slow([20_000] * 8) == []


def test_one_far_below_the_others_trickles() -> None:
    assert far_too_slow([50e6, 50e6, 0.9e6, 50e6]) == [2]
    assert far_too_slow([50e6, 50e6, 10e6, 50e6]) == []


def test_a_cap_of_ours_is_not_the_stores_fault() -> None:
    assert far_too_slow([40_000], cap_bytes_per_s=50_000) == []
    assert far_too_slow([4_000], cap_bytes_per_s=50_000) == [0]


def test_nobody_is_no_trickle() -> None:
    assert far_too_slow([]) == []
