"""Bytes that are lent for a moment reach the same place however the object was cut."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.convert import convert
from headrace.stream.plan import Columns, Placement, placed_bytes
from headrace.stream.ranks.deliver import deliver, parts_in
from tests.profiles import examples

SEEDED = settings(max_examples=examples(200))
OBJECT = random.Random(3).randbytes(4_000)
BEFORE = 12  # bytes of the object before the tensor, and of the buffer before its place


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """A tensor of BF16: whole or some columns of it, as it is or as F32."""
    rows, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    first, last = sorted(draw(st.tuples(st.integers(0, width), st.integers(0, width))))
    columns = Columns(2 * width, 2 * first, 2 * last) if draw(st.booleans()) else None
    dtype = draw(st.sampled_from(["BF16", "F32"]))
    return Placement(0, BEFORE, BEFORE + rows * width * 2, BEFORE, 0, "BF16", dtype, 0, columns)


def expected(placement: Placement) -> bytes:
    data = OBJECT[placement.start : placement.end]
    if placement.columns is not None:
        row, first, last = placement.columns.row_bytes, placement.columns.first, placement.columns.last
        data = b"".join(data[at + first : at + last] for at in range(0, len(data), row))
    if placement.dtype == "F32":
        result = bytearray(2 * len(data))
        convert(memoryview(data), "BF16", memoryview(result), "F32")
        data = bytes(result)
    return bytes(BEFORE) + data + bytes(BEFORE)


@SEEDED
@given(placements(), st.lists(st.integers(0, 200), max_size=8), st.randoms(use_true_random=False))
def test_any_cut_between_elements_gives_the_same_bytes(
    placement: Placement, cuts: list[int], chance: random.Random
) -> None:
    ends = sorted(
        {0, placement.end + 30, *(BEFORE + 2 * cut for cut in cuts if BEFORE + 2 * cut < placement.end)}
    )
    lent = [(start, end) for start, end in itertools.pairwise(ends) if end > placement.start]
    memory = bytearray(BEFORE + placed_bytes(placement) + BEFORE)
    chance.shuffle(lent)
    sizes = [
        deliver(memoryview(OBJECT)[start:end], start, placement, memoryview(memory)) for start, end in lent
    ]
    assert memory == expected(placement)
    assert sum(sizes) == placement.end - placement.start


@SEEDED
@given(placements(), st.lists(st.integers(0, 300), max_size=8))
def test_each_row_or_element_is_in_one_part(placement: Placement, cuts: list[int]) -> None:
    ends = sorted({0, placement.end + 30, *cuts})
    at = placement.start
    for start, end in itertools.pairwise(ends):
        if start < placement.end and end > placement.start:
            piece = parts_in(placement, start, end)
            assert piece.start == at
            at = piece.end
    assert at == placement.end
