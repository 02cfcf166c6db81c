"""Conversion gives the bits that torch's .to() gives, for every pair of formats and any input bits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.checkpoint.header import DTYPE_BITS
from headrace.stream.convert import CONVERTIBLE, CannotConvert, check_convertible, convert
from tests.profiles import examples

SEEDED = settings(max_examples=examples(150))
TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PAIRS = [(source, dtype) for source in CONVERTIBLE for dtype in CONVERTIBLE if source != dtype]


def ours(data: bytes, source: str, dtype: str) -> torch.Tensor:
    result = bytearray(len(data) * DTYPE_BITS[dtype] // DTYPE_BITS[source])
    convert(memoryview(data), source, memoryview(result), dtype)
    return torch.frombuffer(result, dtype=TORCH[dtype])


def assert_as_torch(data: bytes, source: str, dtype: str) -> None:
    expected = torch.frombuffer(bytearray(data), dtype=TORCH[source]).to(TORCH[dtype])
    got = ours(data, source, dtype)
    is_nan = expected.isnan()
    assert torch.equal(got.isnan(), is_nan)
    raw = {8: torch.int64, 4: torch.int32, 2: torch.int16}[expected.element_size()]
    assert torch.equal(got[~is_nan].view(raw), expected[~is_nan].view(raw))


@pytest.mark.parametrize(("source", "dtype"), PAIRS)
def test_random_bits_convert_as_in_torch(source: str, dtype: str) -> None:
    data = np.random.default_rng(3).integers(0, 256, 8 * 40_000, dtype=np.uint8).tobytes()
    assert_as_torch(data, source, dtype)


@pytest.mark.parametrize("source", ["F16", "BF16"])
@pytest.mark.parametrize("dtype", CONVERTIBLE)
def test_every_16_bit_value_converts_as_in_torch(source: str, dtype: str) -> None:
    if source != dtype:
        assert_as_torch(np.arange(1 << 16, dtype=np.uint16).tobytes(), source, dtype)


EDGES = [
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    65504.0,
    65519.9,
    65520.0,
    1e-45,
    3.4e38,
    1e308,
]
TIES = [1 + 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-11, 2.0**-24, 1.5 * 2.0**-24, 2.0**-133, 65520.0]


@pytest.mark.parametrize(("source", "dtype"), PAIRS)
def test_values_on_and_beside_a_tie_convert_as_in_torch(source: str, dtype: str) -> None:
    # A double just above a tie of float16 is rounded onto it by float32: rounding twice gives another result.
    beside = [np.nextafter(tie, tie * factor) for tie in TIES for factor in (0.0, 1.0, 2.0)]
    values = torch.tensor([*beside, *(-value for value in beside)], dtype=torch.float64)
    assert_as_torch(values.to(TORCH[source]).view(torch.uint8).numpy().tobytes(), source, dtype)


@SEEDED
@given(
    st.lists(st.sampled_from(EDGES) | st.floats() | st.floats(width=16), min_size=1, max_size=70),
    st.sampled_from(PAIRS),
)
def test_edges_and_any_values_convert_as_in_torch(values: list[float], pair: tuple[str, str]) -> None:
    source, dtype = pair
    data = torch.tensor(values, dtype=torch.float64).to(TORCH[source]).view(torch.uint8).numpy().tobytes()
    assert_as_torch(data, source, dtype)


def test_no_warning_is_given_for_any_value() -> None:
    import warnings

    data = np.random.default_rng(4).integers(0, 256, 8 * 4_000, dtype=np.uint8).tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source, dtype in PAIRS:
            ours(data, source, dtype)


def test_nothing_converts_to_nothing() -> None:
    convert(memoryview(b""), "F32", memoryview(bytearray()), "BF16")


@pytest.mark.parametrize(("source", "dtype"), [("F8_E4M3", "BF16"), ("I8", "F32"), ("BF16", "I32")])
def test_a_format_that_is_not_converted_is_refused_by_name(source: str, dtype: str) -> None:
    with pytest.raises(CannotConvert, match=rf"lm_head.weight is stored as {source}.*to {dtype}"):
        check_convertible("lm_head.weight", source, dtype)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_any_format_may_stay_as_it_is(dtype: str) -> None:
    check_convertible("x", dtype, dtype)
