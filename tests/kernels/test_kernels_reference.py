"""The PyTorch references against plain formulas in float64."""

import pytest
import torch

from headrace.kernels.attention import decode_attention, decode_context, prefill_attention, prefill_context
from headrace.kernels.linear import linear
from headrace.kernels.norm import head_norm, rms_norm, silu_mul
from headrace.kernels.rotary import rotary_table, rotate

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Rounding steps of each type, relative to values near one.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: torch.Tensor, exact: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One token: query [heads, head_dim] over keys and values [context, kv_heads, head_dim], in float64."""
    shared = query.shape[0] // keys.shape[1]
    key, value = (tensor.double().repeat_interleave(shared, dim=1) for tensor in (keys, values))
    scores = torch.einsum("hd,chd->hc", query.double(), key) / query.shape[1] ** 0.5
    return torch.einsum("hc,chd->hd", scores.softmax(-1), value).flatten()


@each_dtype
def test_rms_norm_divides_by_the_root_mean_square(dtype: torch.dtype) -> None:
    x, weight = random(5, 48, dtype=dtype) * 3, random(48, dtype=dtype, seed=1)
    before = x.clone()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_near(rms_norm(x, weight, 1e-5), exact)
    assert torch.equal(x, before)


@each_dtype
def test_head_norm_is_the_norm_of_each_head_with_the_weight_of_its_kind(dtype: torch.dtype) -> None:
    x = random(5, 9, 8, dtype=dtype)[:, :6] * 3  # as q and k lie beside v
    for_query, for_key = random(8, dtype=dtype, seed=1), random(8, dtype=dtype, seed=2)
    before = x.clone()
    found = head_norm(x, for_query, for_key, 4, 1e-5)
    for head in range(6):
        assert torch.equal(found[:, head], rms_norm(x[:, head], for_query if head < 4 else for_key, 1e-5))
    assert torch.equal(x, before)


@each_dtype
def test_silu_mul_gates_the_second_half_by_the_first(dtype: torch.dtype) -> None:
    x = random(5, 24, dtype=dtype)
    gate, up = x.double().chunk(2, dim=-1)
    before = x.clone()
    assert_near(silu_mul(x), gate * gate.sigmoid() * up)
    assert torch.equal(x, before)


@each_dtype
@pytest.mark.parametrize("rows", [0, 1, 2, 17])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_the_product_with_the_rows_of_the_weight(
    dtype: torch.dtype, rows: int, biased: bool
) -> None:
    x, weight = random(rows, 40, dtype=dtype), random(24, 40, dtype=dtype, seed=1) / 8
    bias = random(24, dtype=dtype, seed=2) if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    found = linear(x, weight, bias)
    assert found.dtype is dtype
    assert_near(found, exact)


@each_dtype
def test_rotate_turns_pairs_of_the_two_halves(dtype: torch.dtype) -> None:
    positions, frequencies = torch.tensor([0, 3, 1000]), torch.tensor([1.0, 0.1, 0.01])
    x = random(3, 2, 6, dtype=dtype)
    before = x.clone()
    angles = torch.outer(positions.double(), frequencies.double()).unsqueeze(1)
    pairs = torch.complex(x[..., :3].double(), x[..., 3:].double()) * torch.polar(
        torch.ones_like(angles), angles
    )
    found = rotate(x, *rotary_table(positions, frequencies, dtype))
    assert_near(found, torch.cat((pairs.real, pairs.imag), dim=-1))
    assert torch.equal(x, before)


@pytest.mark.parametrize("own", [False, True], ids=["one-row-for-all", "one-for-each-token"])
def test_angles_are_multiplied_by_the_factor_and_may_turn_at_each_tokens_own_speed(own: bool) -> None:
    positions, frequencies = torch.tensor([2, 50]), torch.tensor([[1.0, 0.1], [0.5, 0.01]])
    used = frequencies if own else frequencies[:1].expand(2, 2)
    cos, sin = rotary_table(positions, frequencies if own else frequencies[0], torch.float32, 1.5)
    angles = positions.double().unsqueeze(1) * used.double()
    assert_near(cos.squeeze(1), 1.5 * torch.cat((angles.cos(), angles.cos()), dim=1))
    assert_near(sin.squeeze(1), 1.5 * angles.sin())


@each_dtype
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("length", "context"), [(1, 1), (1, 9), (9, 9), (4, 9), (40, 130)])
@pytest.mark.parametrize("neighbours", [True, False])
def test_a_chunk_sees_its_context_up_to_each_token(
    dtype: torch.dtype, kv_heads: int, length: int, context: int, neighbours: bool
) -> None:
    keys, values = random(200, kv_heads, 8, dtype=dtype), random(200, kv_heads, 8, dtype=dtype, seed=1)
    query = random(length, 6, 8, dtype=dtype, seed=2)
    slots = torch.arange(5, 5 + context) if neighbours else torch.randperm(200)[:context]
    found = prefill_attention(query, keys, values, prefill_context(slots, length, dtype))
    for row in range(length):
        seen = slots[: context - length + row + 1]
        assert_near(found[row], attention(query[row], keys[seen], values[seen]))


@each_dtype
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("lengths", [[1], [33], [1, 700], [5, 1, 64, 31], [7, 7]])
def test_a_decoding_row_sees_its_own_tokens_only(
    dtype: torch.dtype, kv_heads: int, lengths: list[int]
) -> None:
    keys, values = random(900, kv_heads, 8, dtype=dtype), random(900, kv_heads, 8, dtype=dtype, seed=1)
    query = random(len(lengths), 6, 8, dtype=dtype, seed=2)
    owned = torch.split(torch.randperm(900)[: sum(lengths)], lengths)
    slots = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, own in enumerate(owned):
        slots[row, : len(own)] = own
    found = decode_attention(query, keys, values, decode_context(slots, torch.tensor(lengths), dtype))
    for row, own in enumerate(owned):
        assert_near(found[row], attention(query[row], keys[own], values[own]))


@pytest.mark.parametrize("window", [1, 2, 5, 8, 9, 10, 200])
@pytest.mark.parametrize(("length", "context"), [(1, 1), (1, 9), (9, 9), (4, 9), (40, 130), (130, 130)])
@pytest.mark.parametrize("neighbours", [True, False])
def test_a_token_of_a_chunk_sees_its_window_only(
    window: int, length: int, context: int, neighbours: bool
) -> None:
    keys, values = random(200, 2, 8), random(200, 2, 8, seed=1)
    query = random(length, 6, 8, seed=2)
    slots = torch.arange(5, 5 + context) if neighbours else torch.randperm(200)[:context]
    unseen = slots[: max(0, context - length - window + 1)]
    keys[unseen], values[unseen] = float("nan"), float("nan")
    found = prefill_attention(query, keys, values, prefill_context(slots, length, torch.float32, window))
    for row in range(length):
        end = context - length + row + 1
        seen = slots[max(0, end - window) : end]
        assert_near(found[row], attention(query[row], keys[seen], values[seen]))


@pytest.mark.parametrize("window", [1, 2, 31, 32, 64, 700, 900])
@pytest.mark.parametrize("lengths", [[1], [33], [1, 700], [5, 1, 64, 31], [7, 7]])
def test_a_decoding_row_sees_its_window_only(window: int, lengths: list[int]) -> None:
    keys, values = random(900, 2, 8), random(900, 2, 8, seed=1)
    query = random(len(lengths), 6, 8, seed=2)
    owned = torch.split(torch.randperm(900)[: sum(lengths)], lengths)
    slots = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, own in enumerate(owned):
        slots[row, : len(own)] = own
    context = decode_context(slots, torch.tensor(lengths), torch.float32, window)
    assert context.longest == min(window, max(lengths))
    found = decode_attention(query, keys, values, context)
    for row, own in enumerate(owned):
        assert_near(found[row], attention(query[row], keys[own[-window:]], values[own[-window:]]))


def test_neighbouring_slots_are_read_without_copying() -> None:
    context = prefill_context(torch.arange(10, 20), 10, torch.float32)
    assert context.slots == slice(10, 20)
    assert decode_context(torch.arange(10, 20)[None], torch.tensor([10]), torch.float32).slots == slice(
        10, 20
    )


@pytest.mark.parametrize("slots", [[3, 5, 4, 6], [3, 3, 5, 6], [6, 5, 4, 3], [1, 2, 3, 5]])
def test_slots_that_only_look_like_neighbours_are_gathered(slots: list[int]) -> None:
    context = prefill_context(torch.tensor(slots), 4, torch.float32)
    assert isinstance(context.slots, torch.Tensor)
