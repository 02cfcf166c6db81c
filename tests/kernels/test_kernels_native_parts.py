"""The C++ kernels against float64 and torch, in each instruction set that this machine has."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from headrace.kernels.native import parts
from headrace.kernels.norm import head_norm, rms_norm, silu_mul
from headrace.kernels.rotary import rotary_table, rotate
from tests.kernels.test_kernels_reference import random

# The last one is the best.
SETS = [name for name in ("generic", "avx2", "avx512_bf16", "amx_bf16") if parts.use_instruction_set(name)]
DTYPES = (torch.float32, torch.bfloat16)
COMPANY = (1, 2, 3, 5, 7, 15, 17, 31, 33, 64, 100, 300)
EPS = 1e-5
NAN, INFINITY = float("nan"), float("inf")
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_set = pytest.mark.parametrize("name", SETS)


@contextmanager
def computing_with(name: str, threads: int = 1) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    parts.follow_torch()
    assert parts.use_instruction_set(name)
    try:
        yield
    finally:
        parts.use_instruction_set(SETS[-1])
        torch.set_num_threads(before)
        parts.follow_torch()


def assert_is_the_product(
    found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Summed in float32 in whatever order, and rounded once."""
    x, weight = x.double(), weight.double()
    offset = 0.0 if bias is None else bias.double()
    exact, size = x @ weight.T + offset, x.abs() @ weight.abs().T + abs(offset)
    bound = torch.finfo(found.dtype).eps / 2 * exact.abs() + 8 * torch.finfo(torch.float32).eps * size
    assert ((found.double() - exact).abs() <= bound).all()


def assert_near(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Within some rounding steps of the largest."""
    bound = {torch.float32: 3e-5, torch.bfloat16: 6e-2}[found.dtype]
    assert ((found.double() - exact).abs() <= bound * exact.abs().amax(-1, keepdim=True)).all()


def assert_no_further_than(torchs: torch.Tensor, found: torch.Tensor, exact: torch.Tensor) -> None:
    """On the whole: a single value may have more luck."""
    ours, theirs = ((each.double() - exact).square().mean() for each in (found, torchs))
    assert ours <= 1.05 * theirs


@each_dtype
@given(
    name=st.sampled_from(SETS),
    threads=st.integers(1, 4),
    rows=st.integers(0, 40),
    width=st.integers(1, 100),
    outputs=st.integers(1, 100),
    beside=st.integers(0, 3),
    biased=st.booleans(),
    wide=st.booleans(),
)
def test_a_product_may_have_any_shape(
    dtype: torch.dtype,
    name: str,
    threads: int,
    rows: int,
    width: int,
    outputs: int,
    beside: int,
    biased: bool,
    wide: bool,
) -> None:
    """`beside` elements lie between x's rows, so that they begin anywhere."""
    x = random(rows, width + beside, dtype=dtype)[:, :width]
    weight = random(outputs, width, dtype=dtype, seed=1)
    bias = random(outputs, dtype=dtype, seed=2) if biased else None
    with computing_with(name, threads):
        found = parts.linear(x, weight, bias, wide=wide)
    assert found.dtype is (torch.float32 if wide else dtype)
    assert found.shape == (rows, outputs)
    assert_is_the_product(found, x, weight, bias)


@each_set
@each_dtype
@pytest.mark.parametrize("shape", [(576, 960), (1536, 576), (576, 3072), (2048, 100)])
@pytest.mark.parametrize("rows", [1, 10, 84, 1100])
def test_products_of_a_models_shapes_are_exact_too(
    name: str, dtype: torch.dtype, shape: tuple[int, int], rows: int
) -> None:
    width, outputs = shape
    x, weight = random(rows, width, dtype=dtype), random(outputs, width, dtype=dtype, seed=1) / width**0.5
    with computing_with(name, threads=2):
        found = parts.linear(x, weight)
    assert_is_the_product(found, x, weight, None)


@each_set
@each_dtype
@pytest.mark.parametrize(("width", "outputs"), [(576, 96), (57, 33), (5, 7), (96, 40)])
def test_a_rows_product_has_the_same_bits_in_any_company_and_on_any_threads(
    name: str, dtype: torch.dtype, width: int, outputs: int
) -> None:
    x, weight = random(max(COMPANY), width, dtype=dtype), random(outputs, width, dtype=dtype, seed=1)
    bias = random(outputs, dtype=dtype, seed=2)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    with computing_with(name):
        alone = torch.cat([parts.linear(row, weight, bias, wide=True) for row in x.split(1)])
    for threads in (1, 3):
        with computing_with(name, threads):
            for count in COMPANY:
                assert torch.equal(parts.linear(x[:count], weight, bias, wide=True), alone[:count])
                shuffled = parts.linear(x[order[:count]], weight, bias, wide=True)
                assert torch.equal(shuffled, alone[order[:count]])


@each_set
@each_dtype
@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize(("width", "outputs"), [(64, 64), (45, 37)])
def test_what_is_not_finite_shows_where_it_is_used_and_nowhere_else(
    name: str, dtype: torch.dtype, value: float, width: int, outputs: int
) -> None:
    for row, element, output in ((0, 0, 0), (18, width - 1, outputs - 1), (5, 3, outputs - 2)):
        x, weight = random(19, width, dtype=dtype).abs_(), random(outputs, width, dtype=dtype, seed=1).abs_()
        with computing_with(name):
            x[row, element] = value
            assert_only(parts.linear(x, weight, wide=True), (row, slice(None)), value)
            x[row, element] = 1.0
            weight[output, element] = value
            assert_only(parts.linear(x, weight, wide=True), (slice(None), output), value)


def assert_only(found: torch.Tensor, where: tuple[int | slice, int | slice], value: float) -> None:
    expected = torch.full_like(found[where], value)
    assert torch.equal(found[where].nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    rest = found.clone()
    rest[where] = 0.0
    assert rest.isfinite().all()


@each_set
def test_products_of_torch_and_ours_may_take_turns_on_a_thread(name: str) -> None:
    """Both may use a processor's tiles, whose configuration is the thread's."""
    x, weight = random(40, 256, dtype=torch.bfloat16), random(96, 256, dtype=torch.bfloat16, seed=1)
    with computing_with(name):
        ours, theirs = parts.linear(x, weight), functional.linear(x, weight)
        for _ in range(5):
            assert torch.equal(parts.linear(x, weight), ours)
            assert torch.equal(functional.linear(x, weight), theirs)


@each_dtype
@given(
    name=st.sampled_from(SETS), rows=st.integers(0, 40), width=st.integers(1, 100), beside=st.integers(0, 3)
)
def test_a_norm_may_have_any_width(dtype: torch.dtype, name: str, rows: int, width: int, beside: int) -> None:
    x = (random(rows, width + beside, dtype=dtype) * 3)[:, :width]
    weight = random(width, dtype=dtype, seed=1)
    with computing_with(name, threads=2):
        found = parts.rms_norm(x, weight, EPS)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    assert_near(found, exact)


class Layer:
    """A random layer of an odd shape: what its two parts are made of, in the reference and in float64."""

    def __init__(self, dtype: torch.dtype, *, heads: int, kv_heads: int, head_dim: int, hidden: int, inner: int,
                 biased: bool, normed: bool) -> None:  # fmt: skip
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        seeds = iter(range(100, 200))

        def weight(*shape: int) -> torch.Tensor:
            return random(*shape, dtype=dtype, seed=next(seeds)) / shape[-1] ** 0.5

        def bias(size: int) -> torch.Tensor | None:
            return random(size, dtype=dtype, seed=next(seeds)) / 4 if biased else None

        def norm(size: int) -> torch.Tensor:
            return 1 + random(size, dtype=dtype, seed=next(seeds)) / 4

        outputs = (heads + 2 * kv_heads) * head_dim
        self.before = {
            "norm": norm(hidden),
            "qkv": weight(outputs, hidden),
            "qkv_bias": bias(outputs),
            "query_norm": norm(head_dim) if normed else None,
            "key_norm": norm(head_dim) if normed else None,
        }
        self.after = {
            "output": weight(hidden, heads * head_dim),
            "output_bias": bias(hidden),
            "norm": norm(hidden),
            "gate_up": weight(2 * inner, hidden) * 2,
            "gate_up_bias": bias(2 * inner),
            "down": weight(hidden, inner),
            "down_bias": bias(hidden),
        }

    def native_before(self) -> parts.BeforeAttention:
        return parts.BeforeAttention(heads=self.heads, kv_heads=self.kv_heads, eps=EPS, **self.before)  # type: ignore[arg-type]

    def native_after(self) -> parts.AfterAttention:
        return parts.AfterAttention(eps=EPS, **self.after)  # type: ignore[arg-type]

    def torch_before(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of each row, in the dtype of `hidden`."""
        own = {name: None if each is None else each.to(hidden.dtype) for name, each in self.before.items()}
        cos, sin = cos.to(hidden.dtype), sin.to(hidden.dtype)
        normed = _norm(hidden, own["norm"])
        qkv = functional.linear(normed, own["qkv"], own["qkv_bias"])
        q, k, v = qkv.unflatten(-1, (-1, self.head_dim)).split((self.heads, self.kv_heads, self.kv_heads), 1)
        turning = torch.cat((q, k), dim=1)
        if own["query_norm"] is not None:
            if hidden.dtype is torch.float64:
                turning = torch.cat((_norm(q, own["query_norm"]), _norm(k, own["key_norm"])), dim=1)
            else:
                turning = head_norm(turning, own["query_norm"], own["key_norm"], self.heads, EPS)
        turned = rotate(turning, cos, sin)
        return turned[:, : self.heads], turned[:, self.heads :], v

    def torch_after(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The new `hidden`, in its dtype."""
        own = {name: None if each is None else each.to(hidden.dtype) for name, each in self.after.items()}
        hidden = hidden + functional.linear(attended, own["output"], own["output_bias"])
        between = functional.linear(_norm(hidden, own["norm"]), own["gate_up"], own["gate_up_bias"])
        return hidden + functional.linear(silu_mul(between), own["down"], own["down_bias"])


def _norm(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    assert weight is not None
    if x.dtype is torch.float64:
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
    return rms_norm(x, weight, EPS)


shapes = st.fixed_dictionaries(
    {
        "kv_heads": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "head_dim": st.sampled_from((6, 10, 16, 64, 80)),
        "hidden": st.integers(8, 100),
        "inner": st.integers(1, 100),
        "biased": st.booleans(),
        "normed": st.booleans(),
    }
)


def layer_of(dtype: torch.dtype, shape: dict[str, int]) -> Layer:
    return Layer(dtype, **(shape | {"heads": shape["heads"] * shape["kv_heads"]}))  # type: ignore[arg-type]


@each_dtype
@given(name=st.sampled_from(SETS), threads=st.integers(1, 3), rows=st.integers(0, 40), shape=shapes)
def test_queries_keys_and_values_are_those_of_float64_and_lie_in_their_slots(
    dtype: torch.dtype, name: str, threads: int, rows: int, shape: dict[str, int]
) -> None:
    layer = layer_of(dtype, shape)
    hidden = random(rows, shape["hidden"], dtype=dtype)
    frequencies = 1 / 100 ** (torch.arange(0, layer.head_dim, 2) / layer.head_dim)
    cos, sin = rotary_table(torch.arange(rows) * 7, frequencies, dtype)
    slots = torch.randperm(60, generator=torch.Generator().manual_seed(rows))[:rows]
    keys, values = (random(60, layer.kv_heads, layer.head_dim, dtype=dtype, seed=seed) for seed in (3, 4))
    untouched = torch.ones(60, dtype=torch.bool).index_fill_(0, slots, value=False)
    before = hidden.clone(), keys[untouched].clone(), values[untouched].clone()
    with computing_with(name, threads):
        query = layer.native_before()(hidden, cos, sin, slots, keys, values)
    assert all(map(torch.equal, (hidden, keys[untouched], values[untouched]), before))
    assert query.shape == (rows, layer.heads, layer.head_dim)
    exact = layer.torch_before(hidden.double(), cos, sin)
    for found, each in zip((query, keys[slots], values[slots]), exact, strict=True):
        assert_near(found, each)


@each_dtype
@given(name=st.sampled_from(SETS), threads=st.integers(1, 3), rows=st.integers(0, 40), shape=shapes)
def test_what_follows_the_attention_is_that_of_float64(
    dtype: torch.dtype, name: str, threads: int, rows: int, shape: dict[str, int]
) -> None:
    layer = layer_of(dtype, shape)
    attended = random(rows, layer.heads * layer.head_dim + 3, dtype=dtype)[:, 3:]
    hidden = random(rows, shape["hidden"], dtype=dtype, seed=1)
    exact = layer.torch_after(attended.double(), hidden.double())
    with computing_with(name, threads):
        layer.native_after()(attended, hidden)
    assert_near(hidden, exact)


@each_set
def test_a_layer_in_bfloat16_strays_no_further_than_torchs(name: str) -> None:
    layer = Layer(
        torch.bfloat16, heads=9, kv_heads=3, head_dim=64, hidden=576, inner=1536, biased=False, normed=False
    )
    hidden, attended = random(84, 576, dtype=torch.bfloat16), random(84, 576, dtype=torch.bfloat16, seed=1)
    cos, sin = rotary_table(torch.arange(84), 1 / 100 ** (torch.arange(0, 64, 2) / 64), torch.bfloat16)
    keys, values = torch.zeros(84, 3, 64).bfloat16(), torch.zeros(84, 3, 64).bfloat16()
    exact_before = layer.torch_before(hidden.double(), cos, sin)
    exact_after = layer.torch_after(attended.double(), hidden.double())
    torch_before, torch_after = layer.torch_before(hidden, cos, sin), layer.torch_after(attended, hidden)
    with computing_with(name, threads=2):
        query = layer.native_before()(hidden, cos, sin, torch.arange(84), keys, values)
        layer.native_after()(attended, hidden)
    for theirs, found, exact in zip(torch_before, (query, keys, values), exact_before, strict=True):
        assert_no_further_than(theirs, found, exact)
    assert_no_further_than(torch_after, hidden, exact_after)


@each_set
@each_dtype
def test_a_row_goes_through_a_layer_with_the_same_bits_in_any_company(name: str, dtype: torch.dtype) -> None:
    layer = Layer(dtype, heads=6, kv_heads=2, head_dim=10, hidden=70, inner=100, biased=True, normed=True)
    rows = 1100  # more than go through a part together
    hidden, attended = random(rows, 70, dtype=dtype), random(rows, 60, dtype=dtype, seed=1)
    frequencies = 1 / 100 ** (torch.arange(0, 10, 2) / 10)
    cos, sin = rotary_table(torch.arange(rows), frequencies, dtype)

    def run(start: int, end: int) -> list[torch.Tensor]:
        keys, values = torch.zeros(rows, 2, 10, dtype=dtype), torch.zeros(rows, 2, 10, dtype=dtype)
        own = hidden[start:end].clone()
        slots = torch.arange(start, end)
        query = layer.native_before()(own, cos[start:end], sin[start:end], slots, keys, values)
        layer.native_after()(attended[start:end], own)
        return [query, keys[start:end], values[start:end], own]

    with computing_with(name, threads=3):
        whole = run(0, rows)
        for start, end in ((0, 1), (5, 8), (40, 57), (1020, 1060), (1099, 1100)):
            for found, all_rows in zip(run(start, end), whole, strict=True):
                assert torch.equal(found, all_rows[start:end])


def gated(name: str, gates: torch.Tensor) -> torch.Tensor:
    """2 silu(gates), through a layer whose other weights pass on what they are given: the gate is its bias."""
    size, dtype = len(gates), gates.dtype
    layer = parts.AfterAttention(
        eps=EPS, output=torch.zeros(size, 1, dtype=dtype), output_bias=None, norm=torch.ones(size, dtype=dtype),
        gate_up=torch.zeros(2 * size, size, dtype=dtype), gate_up_bias=torch.cat((gates, torch.full_like(gates, 2.0))),
        down=torch.eye(size, dtype=dtype), down_bias=None,
    )  # fmt: skip
    hidden = torch.zeros(3, size, dtype=dtype)
    with computing_with(name):
        layer(torch.zeros(3, 1, dtype=dtype), hidden)
    return hidden


@each_set
@each_dtype
def test_a_gate_may_be_of_any_size(name: str, dtype: torch.dtype) -> None:
    sizes = [0.0, 1e-3, -1e-3, 1.0, -1.0, 20.0, -20.0, 87.0, -87.0, -88.5, -120.0, 3e4, -3e4]
    gates = torch.tensor(sizes).to(dtype)
    exact = (2.0 * functional.silu(gates.double())).expand(3, -1)
    bound = 4 * torch.finfo(dtype).eps * exact.abs() + 1e-35
    assert ((gated(name, gates).double() - exact).abs() <= bound).all()


@each_set
@each_dtype
@pytest.mark.parametrize(("gate", "expected"), [(INFINITY, INFINITY), (-INFINITY, NAN), (NAN, NAN)])
def test_a_gate_that_is_not_finite_gives_what_torchs_gives(
    name: str, dtype: torch.dtype, gate: float, expected: float
) -> None:
    gates = torch.tensor([gate], dtype=dtype)
    torch.testing.assert_close(functional.silu(gates).item(), expected, equal_nan=True)
    torch.testing.assert_close(gated(name, gates), torch.full((3, 1), expected, dtype=dtype), equal_nan=True)


def test_only_dense_tensors_of_one_known_dtype_on_the_cpu_are_computed() -> None:
    square = random(4, 4)
    assert parts.can_compute(square, None, square)
    assert not parts.can_compute(square, square.bfloat16())
    assert not parts.can_compute(square.half())
    assert not parts.can_compute(square.T)
    assert not parts.can_compute(square.to("meta"))


def test_each_dtype_is_computed_by_the_best_set_unless_another_is_asked_for() -> None:
    assert parts.instruction_set(torch.bfloat16) == SETS[-1]
    with computing_with("generic"):
        assert parts.instruction_set(torch.bfloat16) == "generic"
        assert parts.instruction_set(torch.float32) == "generic"
    assert not parts.use_instruction_set("abacus")
