"""The numbers of a tensor, of any dtype and in any blocks."""

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.library import tensor_statistics
from headrace.stream.library.lazy_checkpoint import open_checkpoint
from headrace.stream.library.tensor_statistics import (
    NOTHING,
    NoStatistics,
    Statistics,
    combined,
    read_statistics,
    statistics_of,
)
from tests.stream.safetensors_files import Content, file_of

FLOATS = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0])), max_size=30
)


def close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)


def test_numbers_are_counted_and_averaged() -> None:
    found = statistics_of(np.array([[1.0, 0.0], [-3.0, 2.0]], np.float32))
    assert (found.elements, found.zeros, found.least, found.most, found.mean) == (4, 1, -3.0, 2.0, 0.0)
    assert close(found.std, np.std([1, 0, -3, 2]).item())


def test_what_is_not_finite_is_counted_apart() -> None:
    found = statistics_of(np.array([math.nan, math.inf, -math.inf, 1.0, 3.0]))
    assert (found.nans, found.infinities, found.finite) == (1, 2, 2)
    assert (found.least, found.most, found.mean, found.std) == (1.0, 3.0, 2.0, 1.0)


def test_nothing_finite_has_no_mean() -> None:
    found = statistics_of(np.array([math.nan, math.inf]))
    assert (found.least, found.mean, found.std) == (None, None, None)
    assert statistics_of(np.zeros((0, 4))) == NOTHING


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        np.float16,
        np.int8,
        np.uint64,
        np.bool_,
    ],
)
def test_every_dtype_of_a_byte_or_more_has_numbers(dtype: Any) -> None:
    found = statistics_of(np.array([0, 1, 1, 0]).astype(dtype))
    assert (found.zeros, found.least, found.most, found.mean) == (2, 0.0, 1.0, 0.5)


@given(FLOATS, FLOATS)
def test_two_parts_together_are_the_whole(one: list[float], other: list[float]) -> None:
    both = combined(statistics_of(np.array(one)), statistics_of(np.array(other)))
    whole = statistics_of(np.array(one + other))
    assert (both.elements, both.zeros, both.nans, both.infinities) == (
        whole.elements,
        whole.zeros,
        whole.nans,
        whole.infinities,
    )
    assert (both.least, both.most) == (whole.least, whole.most)
    assert close(both.mean, whole.mean)
    assert close(both.std, whole.std)


def test_a_tensor_is_read_in_blocks_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(70, dtype=np.float32).reshape(10, 7)
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"w": Content("F32", (10, 7), values.tobytes())}))
    monkeypatch.setattr(tensor_statistics, "BLOCK_BYTES", 3 * 28)
    blocks: list[int] = []
    with open_checkpoint(path, framework="numpy") as checkpoint:
        found = read_statistics(checkpoint["w"], blocks.append)
    assert blocks == [84, 84, 84, 28]
    whole = statistics_of(values)
    assert (found.least, found.most, found.elements) == (whole.least, whole.most, 70)
    assert close(found.mean, whole.mean)
    assert close(found.std, whole.std)


def test_complex_numbers_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"w": Content("C64", (2,), bytes(16))}))
    with (
        open_checkpoint(path, framework="numpy") as checkpoint,
        pytest.raises(NoStatistics, match="w has the dtype C64"),
    ):
        read_statistics(checkpoint["w"])


def test_the_deviation_is_of_all_elements() -> None:
    assert Statistics(4, 0, 0, 0, 0.0, 0.0, 0.0, sum_of_squares=16.0).std == 2.0
