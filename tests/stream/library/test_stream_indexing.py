"""Indices mean what they mean to numpy, as far as they are read at all."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from headrace.errors import HeadraceError
from headrace.stream.library.indexing import BadIndex, Region, region_of

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def cut(array: Any, region: Region) -> Any:
    box = array[tuple(slice(start, stop) for start, stop in region.ranges)]
    return box.reshape([size for at, size in enumerate(box.shape) if at not in region.dropped])


@given(st.data(), SHAPES)
def test_an_index_gives_what_it_gives_in_numpy(data: st.DataObject, shape: tuple[int, ...]) -> None:
    index = data.draw(basic_indices(shape, allow_newaxis=False, allow_ellipsis=True))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, slice) and part.step not in (None, 1) for part in parts):
        with pytest.raises(BadIndex, match="step"):
            region_of(index, shape, "w")
        return
    region = region_of(index, shape, "w")
    expected = np.asarray(array[index])
    found = cut(array, region)
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (8, r"asks for 8 of 8 in dimension 0"),
        ((0, -5), r"asks for -5 of 4 in dimension 1"),
        ((0, 0, 0), r"has 3 dimensions"),
        ((..., 0, ...), r"more than one"),
        (slice(None, None, 2), r"step 2 is not read"),
        (slice(None, None, -1), r"step -1 is not read"),
        (slice(None, None, 0), r"holds slice\(None, None, 0\)"),
        (slice("a", None), r"holds slice\('a', None, None\)"),
        (1.5, r"holds float 1\.5"),
        ("name", r"holds str 'name'"),
        (None, r"holds NoneType None"),
        (True, r"holds True"),
        ([0, 1], r"holds list \[0, 1\]"),
        (np.array([True] * 8), r"holds ndarray"),
    ],
)
def test_what_is_not_read_is_refused_by_name(index: Any, said: str) -> None:
    with pytest.raises(BadIndex, match=said) as caught:
        region_of(index, (8, 4), "model.w")
    assert str(caught.value).startswith("model.w")
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, HeadraceError)


def test_numpys_numbers_are_numbers() -> None:
    assert region_of((np.int64(-1), slice(np.int32(1), None)), (8, 4), "w") == Region(
        ((7, 8), (1, 4)), frozenset({0})
    )


def test_a_slice_that_goes_backwards_is_empty() -> None:
    assert region_of(slice(6, 2), (8,), "w").ranges == ((6, 6),)
