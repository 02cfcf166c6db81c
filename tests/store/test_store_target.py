"""A target hands out the right rest of the right view, however the bytes come."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.store.base import Target


@given(st.lists(st.integers(0, 9), max_size=8), st.data())
def test_bytes_that_come_in_any_portions_fill_the_views_in_order(
    lengths: list[int], data: st.DataObject
) -> None:
    views = [memoryview(bytearray(length)) for length in lengths]
    target = Target(views)
    source = bytes(range(1, 1 + sum(lengths)))
    while len(view := target.next_view()):
        count = data.draw(st.integers(1, len(view)))
        view[:count] = source[target.received : target.received + count]
        target.received += count
    assert target.received == target.size == len(source)
    assert b"".join(views) == source


def test_a_target_of_many_small_views_is_walked_once() -> None:
    views = [memoryview(bytearray(1))] * 200_000
    target = Target(views)  # quadratic work would take minutes
    while len(target.next_view()):
        target.received += 1
    assert target.received == 200_000
