"""A row's bits are the same alone and in any company, and the twins compute what the formulas say."""

from collections.abc import Callable, Iterator

import pytest
import torch

from headrace.kernels import row_invariant
from headrace.kernels.norm import head_norm, rms_norm
from headrace.kernels.rotary import rotary_table, rotate
from headrace.kernels.tiled_attention import (
    TILE,
    tiled_decode,
    tiled_decode_attention,
    tiled_prefill,
    tiled_prefill_attention,
)
from tests.kernels.test_kernels_reference import assert_near, attention, each_dtype, random

COMPANY = (1, 2, 7, 31, 32, 33, 64, 100)


@pytest.fixture(params=[1, 2], autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def assert_each_row_is_its_own(function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    """Rows give the same bits alone, at other places and among others; there are as many rows as the most company."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    alone = torch.cat([function(rows[row : row + 1]) for row in range(len(rows))])
    for count in COMPANY:
        assert torch.equal(function(rows[:count]), alone[:count]), count
        assert torch.equal(function(rows[order[:count]]), alone[order[:count]]), count


@each_dtype
@pytest.mark.parametrize(
    "shape", [(64, 128), (96, 64), (576, 960), (1536, 576), (33, 57), (80, 1000), (7, 5)]
)
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_that_of_its_own_row(dtype: torch.dtype, shape: tuple[int, int], biased: bool) -> None:
    width, outputs = shape
    weight = random(outputs, width, dtype=dtype, seed=1) / 8
    bias = random(outputs, dtype=dtype, seed=2) if biased else None
    assert_each_row_is_its_own(
        lambda x: row_invariant.linear(x, weight, bias), random(max(COMPANY), width, dtype=dtype)
    )


@each_dtype
@pytest.mark.parametrize("width", [3, 57, 96, 1536])
def test_a_gate_is_that_of_its_own_row(dtype: torch.dtype, width: int) -> None:
    assert_each_row_is_its_own(row_invariant.silu_mul, random(max(COMPANY), 2 * width, dtype=dtype) * 4)


@each_dtype
@pytest.mark.parametrize("width", [7, 64, 576, 4096])
def test_a_norm_is_that_of_its_own_row(dtype: torch.dtype, width: int) -> None:
    weight = random(width, dtype=dtype, seed=1)
    assert_each_row_is_its_own(
        lambda x: rms_norm(x, weight, 1e-5), random(max(COMPANY), width, dtype=dtype) * 3
    )


@each_dtype
@pytest.mark.parametrize("head_dim", [6, 16, 64, 80])
def test_heads_are_normed_and_turned_for_their_own_row(dtype: torch.dtype, head_dim: int) -> None:
    weights = random(head_dim, dtype=dtype, seed=1), random(head_dim, dtype=dtype, seed=2)
    frequencies = 1 / 1000 ** (torch.arange(0, head_dim, 2) / head_dim)

    def turned(x: torch.Tensor) -> torch.Tensor:
        # The first element of a row says where it stands.
        angles = rotary_table((x[:, 0, 0].float() * 1000).abs().long(), frequencies, dtype)
        return rotate(head_norm(x[:, :15], *weights, 9, 1e-5), *angles)

    assert_each_row_is_its_own(turned, random(max(COMPANY), 20, head_dim, dtype=dtype))


@each_dtype
@pytest.mark.parametrize("rows", [0, 1, 17, 32, 70])
@pytest.mark.parametrize("biased", [True, False])
def test_the_product_is_that_with_the_rows_of_the_weight(dtype: torch.dtype, rows: int, biased: bool) -> None:
    x, weight = random(rows, 40, dtype=dtype), random(24, 40, dtype=dtype, seed=1) / 8
    bias = random(24, dtype=dtype, seed=2) if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    found = row_invariant.linear(x, weight, bias)
    assert found.dtype is dtype
    assert_near(found, exact)


@each_dtype
def test_the_gate_stands_for_the_first_half_however_large_it_is(dtype: torch.dtype) -> None:
    x = torch.cat((random(5, 24, dtype=dtype), torch.tensor([[-200.0, 200.0] * 12]).to(dtype)))
    gate, up = x.double().chunk(2, dim=-1)
    before = x.clone()
    assert_near(row_invariant.silu_mul(x), gate * gate.sigmoid() * up)
    assert torch.equal(x, before)


@each_dtype
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 1, 5, TILE, 200])
@pytest.mark.parametrize(("length", "context"), [(1, 1), (1, 9), (9, 9), (4, 300), (40, TILE), (290, 300)])
def test_a_chunk_sees_its_context_or_window_up_to_each_token(
    dtype: torch.dtype, kv_heads: int, window: int | None, length: int, context: int
) -> None:
    keys, values = random(400, kv_heads, 8, dtype=dtype), random(400, kv_heads, 8, dtype=dtype, seed=1)
    query = random(length, 6, 8, dtype=dtype, seed=2)
    slots = torch.randperm(400, generator=torch.Generator().manual_seed(3))[:context]
    found = tiled_prefill_attention(query, keys, values, tiled_prefill(slots, length, window))
    for row in range(0, length, 7):
        end = context - length + row + 1
        seen = slots[max(0, end - window) if window else 0 : end]
        assert_near(found[row], attention(query[row], keys[seen], values[seen]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 1, 5, TILE, 200])
def test_a_token_attends_alike_in_a_prompt_in_a_chunk_and_decoding_beside_others(
    dtype: torch.dtype, kv_heads: int, window: int | None
) -> None:
    keys, values = random(2000, kv_heads, 8, dtype=dtype), random(2000, kv_heads, 8, dtype=dtype, seed=1)
    query = random(300, 6, 8, dtype=dtype, seed=2)
    slots, others = torch.randperm(2000, generator=torch.Generator().manual_seed(3)).split([300, 1700])
    whole = tiled_prefill_attention(query, keys, values, tiled_prefill(slots, 300, window))
    for start, end in ((0, 1), (3, 140), (127, 129), (200, 300)):
        part = tiled_prefill_attention(
            query[start:end], keys, values, tiled_prefill(slots[:end], end - start, window)
        )
        assert torch.equal(part, whole[start:end])
    for length in (1, 7, 128, 129, 300):
        for beside in ([], [1], [500, 2, 140]):
            lengths = [*beside, length]
            padded = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
            for row, each in enumerate(beside):
                padded[row, :each] = others[:each]
            padded[-1, :length] = slots[:length]
            rows = torch.cat((random(len(beside), 6, 8, dtype=dtype, seed=9), query[length - 1 : length]))
            context = tiled_decode(padded, torch.tensor(lengths), window)
            found = tiled_decode_attention(rows, keys, values, context)
            assert torch.equal(found[-1], whole[length - 1]), (length, beside)


def test_many_long_decoding_requests_are_read_in_portions_and_give_the_same() -> None:
    keys, values = random(6000, 2, 8), random(6000, 2, 8, seed=1)
    query, slots = random(9, 6, 8, seed=2), torch.randperm(6000)[:5000]
    together = tiled_decode_attention(
        query, keys, values, tiled_decode(slots.expand(9, -1), torch.full((9,), 5000))
    )
    for row in range(9):
        alone = tiled_decode(slots[None], torch.tensor([5000]))
        assert torch.equal(
            tiled_decode_attention(query[row : row + 1], keys, values, alone)[0], together[row]
        )
