"""The tail: which reads are worth a second connection."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.transfer.tail import Running, worth_a_second
from tests.profiles import examples

SEEDED = settings(max_examples=examples(80))
MIB = 1 << 20


def numbers(reads: list[Running]) -> list[int]:
    return [read.number for read in reads]


def test_reads_at_the_usual_rate_are_left_alone() -> None:
    running = [Running(number, 4 * MIB, 4 * MIB, 1.0) for number in range(8)]
    assert worth_a_second(running, 4 * MIB) == []


def test_one_that_has_only_begun_is_not_judged() -> None:
    assert worth_a_second([Running(0, 0, 8 * MIB, 0.4)], 100 * MIB) == []


def test_one_that_brings_nothing_is_asked_for_again() -> None:
    running = [Running(0, 0, 8 * MIB, 5.0), Running(1, 7 * MIB, MIB, 1.0)]
    assert numbers(worth_a_second(running, 8 * MIB)) == [0]


def test_one_that_is_slow_but_nearly_there_is_left_alone() -> None:
    # A tenth of the usual rate, and a tenth of a second from its end.
    assert worth_a_second([Running(0, 8 * MIB, MIB // 10, 8.0)], 10 * MIB) == []


def test_the_one_with_the_longest_way_to_go_comes_first() -> None:
    running = [
        Running(0, 4 * MIB, 4 * MIB, 20.0),
        Running(1, MIB, 7 * MIB, 20.0),
        Running(2, 0, 8 * MIB, 20.0),
    ]
    assert numbers(worth_a_second(running, 8 * MIB)) == [2, 1, 0]


def test_before_any_has_ended_they_are_compared_with_each_other() -> None:
    running = [Running(number, 6 * MIB, 2 * MIB, 1.0) for number in range(3)]
    assert worth_a_second(running, None) == []
    slow = Running(9, 0, 8 * MIB, 4.0)
    assert numbers(worth_a_second([*running, slow], None)) == [9]


def test_two_have_nothing_to_be_compared_with() -> None:
    assert worth_a_second([Running(0, 6 * MIB, 2 * MIB, 1.0), Running(1, 0, 8 * MIB, 9.0)], None) == []


@SEEDED
@given(st.lists(st.floats(0.7, 1.4), min_size=1, max_size=16), st.floats(1e5, 1e9), st.floats(0.01, 60))
def test_the_noise_of_a_steady_store_never_makes_a_second_connection(
    noise: list[float], usual_rate: float, seconds: float
) -> None:
    running = [
        Running(number, int(factor * usual_rate * seconds), 8 * MIB, seconds)
        for number, factor in enumerate(noise)
    ]
    assert worth_a_second(running, usual_rate) == []
