"""Attention in C++ against the formula in float64, in every way that this machine has."""

import ctypes
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels.attention import prefill_attention, prefill_context
from headrace.kernels.native.library import library
from headrace.kernels.native_attention import Span, Way, fastest_way, native_attention, native_context

CPU = torch.device("cpu")
PART = 1024  # keys that are summed up apart
WAYS = [
    (dtype, way)
    for dtype in (torch.float32, torch.bfloat16)
    for way in Way
    if way <= (fastest_way(dtype, CPU) or Way.GENERIC)
]
each_way = pytest.mark.parametrize(
    ("dtype", "way"), WAYS, ids=[f"{str(dtype)[6:]}-{way.name.lower()}" for dtype, way in WAYS]
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[ctypes.CDLL]:
    """Set to any number in a test, they are as before after it."""
    built = library()
    assert built is not None
    before = built.headrace_get_threads()
    yield built
    built.headrace_set_threads(before)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def scattered(count: int, slots: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(slots, generator=torch.Generator().manual_seed(seed))[:count]


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    window: int | None = None,
) -> torch.Tensor:
    """A chunk's query [length, heads, head_dim] over the context in `slots`, in float64."""
    length, heads, head_dim = query.shape
    shared = heads // keys.shape[1]
    key, value = (tensor[slots].double().repeat_interleave(shared, dim=1) for tensor in (keys, values))
    scores = torch.einsum("thd,chd->htc", query.double(), key) * head_dim**-0.5
    earlier = len(slots) - length
    seen = torch.ones(length, len(slots), dtype=torch.bool).tril(earlier)
    if window is not None:
        seen = seen.triu(earlier - window + 1)
    # Zero times what is hidden would be NaN if that is infinite.
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("htc,chd->thd", weights, value).flatten(1)


def computed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    way: Way,
    window: int | None = None,
) -> torch.Tensor:
    """The same, by the kernel."""
    span = Span(0, len(query), slots, len(slots))
    return native_attention(query, keys, values, native_context([span], way, window))


def assert_near(found: torch.Tensor, exact: torch.Tensor) -> None:
    tolerance = 2e-5 if found.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


@each_way
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_token_sees_what_it_should(dtype: torch.dtype, way: Way, data: st.DataObject) -> None:
    kv_heads, shared = data.draw(st.integers(1, 4), "kv_heads"), data.draw(st.integers(1, 9), "shared")
    head_dim = data.draw(st.sampled_from([1, 2, 7, 16, 18, 30, 64, 80, 96, 128, 130, 256]), "head_dim")
    length, earlier = data.draw(st.integers(1, 150), "length"), data.draw(st.integers(0, 1500), "earlier")
    window = data.draw(st.none() | st.integers(1, length + earlier), "window")
    slots = scattered(length + earlier, 1700, seed=length)
    keys, values = (random(1700, kv_heads, head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    # As q lies beside k, at an odd place.
    beside = random(length, kv_heads * (shared + 1), head_dim, dtype=dtype, seed=3)
    query = beside[:, : kv_heads * shared]
    library().headrace_set_threads(data.draw(st.integers(1, 4), "threads"))  # type: ignore[union-attr]
    found = computed(query, keys, values, slots, way, window)
    assert_near(found, attention(query, keys, values, slots, window))


@pytest.mark.parametrize(("length", "context"), [(1, 700), (74, 3000), (300, 300)])
def test_bfloat16_is_no_farther_from_the_truth_than_torch_is(length: int, context: int) -> None:
    dtype = torch.bfloat16
    query = random(length, 9, 64, dtype=dtype) * 2
    keys, values = (random(4000, 3, 64, dtype=dtype, seed=seed) for seed in (1, 2))
    slots = scattered(context, 4000)
    exact = attention(query, keys, values, slots)
    theirs = prefill_attention(query, keys, values, prefill_context(slots, length, dtype))
    for way in (way for kind, way in WAYS if kind is dtype):
        errors = (computed(query, keys, values, slots, way).double() - exact).abs()
        assert errors.mean() <= 1.02 * (theirs.double() - exact).abs().mean()


@each_way
def test_requests_of_all_kinds_in_one_call_do_not_touch_each_other(dtype: torch.dtype, way: Way) -> None:
    query = random(60, 6, 32, dtype=dtype)
    keys, values = (random(6000, 2, 32, dtype=dtype, seed=seed) for seed in (1, 2))
    owned = torch.split(scattered(5500, 6000), [2000, 40, 1, 1025, 2434])
    lengths = [40, 9, 1, 1, 9]
    starts = [0, 40, 49, 50, 51]
    spans = [
        Span(start, length, own, len(own)) for start, length, own in zip(starts, lengths, owned, strict=True)
    ]
    for window in (None, 33, 1500):
        found = native_attention(query, keys, values, native_context(spans, way, window))
        for span in spans:
            rows = slice(span.row, span.row + span.length)
            assert torch.equal(found[rows], computed(query[rows], keys, values, span.slots, way, window))


@each_way
@pytest.mark.parametrize("window", [None, 5, 200, 1100])
@pytest.mark.parametrize("chunk", [1, 7, 128, 299])
def test_a_token_has_the_same_bits_in_any_chunk(
    dtype: torch.dtype, way: Way, window: int | None, chunk: int
) -> None:
    query = random(300, 6, 32, dtype=dtype)
    keys, values = (random(3000, 2, 32, dtype=dtype, seed=seed) for seed in (1, 2))
    slots = scattered(2300, 3000)
    whole = computed(query, keys, values, slots, way, window)
    for start in range(0, 300, chunk):
        end = min(start + chunk, 300)
        part = computed(query[start:end], keys, values, slots[: 2000 + end], way, window)
        assert torch.equal(part, whole[start:end])


@each_way
@pytest.mark.parametrize(("length", "context"), [(1, 5 * PART + 3), (90, 2 * PART), (500, 500)])
def test_the_number_of_threads_changes_no_bit(
    threads: ctypes.CDLL, dtype: torch.dtype, way: Way, length: int, context: int
) -> None:
    query = random(length, 6, 64, dtype=dtype)
    keys, values = (random(context, 2, 64, dtype=dtype, seed=seed) for seed in (1, 2))
    slots = scattered(context, context)
    found = []
    for count in (1, 2, 3, 4):
        threads.headrace_set_threads(count)
        found.append(computed(query, keys, values, slots, way))
    assert all(torch.equal(found[0], other) for other in found[1:])


@each_way
@pytest.mark.parametrize("window", [1, 3, 128, 129, 1000])
def test_what_no_token_sees_may_be_anything(dtype: torch.dtype, way: Way, window: int) -> None:
    query = random(20, 4, 16, dtype=dtype)
    keys, values = (random(3000, 2, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    slots = scattered(1300, 3000)
    exact = attention(query, keys, values, slots, window)
    seen = slots[1300 - 20 - window + 1 :]
    unseen = torch.ones(3000, dtype=torch.bool)
    unseen[seen] = False
    keys[unseen], values[unseen] = math.nan, math.inf
    assert_near(computed(query, keys, values, slots, way, window), exact)


@each_way
@pytest.mark.parametrize("size", [1e4, 1e15])
def test_scores_may_be_as_large_as_floats(dtype: torch.dtype, way: Way, size: float) -> None:
    """One weight is 1 then, and all others 0."""
    keys = random(300, 2, 16, dtype=dtype, seed=1) * size
    values = random(300, 2, 16, dtype=dtype, seed=2)
    query = random(9, 4, 16, dtype=dtype) * size
    found = computed(query, keys, values, torch.arange(300), way)
    assert found.isfinite().all()
    assert_near(found, attention(query, keys, values, torch.arange(300)))


@each_way
def test_scores_far_below_zero_weigh_among_themselves(dtype: torch.dtype, way: Way) -> None:
    keys = torch.full((2 * PART + 9, 1, 16), -100.0).to(dtype)
    query = torch.full((2, 2, 16), 100.0).to(dtype)
    values = random(len(keys), 1, 16, dtype=dtype)
    slots = torch.arange(len(keys))
    assert_near(computed(query, keys, values, slots, way), attention(query, keys, values, slots))


@each_way
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_query_that_is_no_number_spoils_its_own_row_only(dtype: torch.dtype, way: Way, bad: float) -> None:
    query = random(9, 4, 16, dtype=dtype)
    keys, values = (random(1209, 2, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    whole = computed(query, keys, values, torch.arange(1209), way).view(9, 4, 16)
    query[4, 1, 3] = bad
    found = computed(query, keys, values, torch.arange(1209), way).view(9, 4, 16)
    assert found[4, 1].isnan().all()
    whole[4, 1] = found[4, 1] = 0
    assert torch.equal(found, whole)


@each_way
@pytest.mark.parametrize("where", ["keys", "values"])
def test_a_key_that_is_no_number_spoils_those_heads_that_see_it(
    dtype: torch.dtype, way: Way, where: str
) -> None:
    query = random(9, 4, 16, dtype=dtype)
    keys, values = (random(1209, 2, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    whole = computed(query, keys, values, torch.arange(1209), way).view(9, 4, 16)
    (keys if where == "keys" else values)[3, 1] = math.nan
    found = computed(query, keys, values, torch.arange(1209), way).view(9, 4, 16)
    assert found[:, 2:].isnan().all()
    assert torch.equal(found[:, :2], whole[:, :2])


def test_slots_that_lie_apart_are_read_too() -> None:
    query, keys, values = random(3, 2, 16), random(50, 2, 16, seed=1), random(50, 2, 16, seed=2)
    slots = torch.arange(100).view(50, 2)[:20, 0].div(2, rounding_mode="floor")
    apart = torch.stack((slots, slots), dim=1)[:, 0]
    assert apart.stride(0) == 2
    assert torch.equal(
        computed(query, keys, values, apart, Way.GENERIC), computed(query, keys, values, slots, Way.GENERIC)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_number_formats_are_left_to_torch(dtype: torch.dtype) -> None:
    assert fastest_way(dtype, CPU) is None


def test_other_devices_are_left_to_torch() -> None:
    assert fastest_way(torch.float32, torch.device("cuda")) is None
