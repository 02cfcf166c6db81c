"""Products: right for every count of rows, and few different counts reach oneDNN."""

import pytest
import torch
from torch.nn import functional

from headrace.kernels.linear import filled_rows, linear


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 63, 65, 511, 513])
@pytest.mark.parametrize("biased", [False, True])
def test_each_row_is_the_rows_own_product(rows: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 24, generator=generator)
    weight = torch.randn(40, 24, generator=generator)
    bias = torch.randn(40, generator=generator) if biased else None
    result = linear(x, weight, bias)
    assert result.shape == (rows, 40)
    torch.testing.assert_close(result, functional.linear(x, weight, bias), atol=1e-5, rtol=1e-5)


def test_few_counts_of_rows_are_computed_and_none_is_much_too_many() -> None:
    counts = {filled_rows(rows) for rows in range(1, 513)}
    assert len(counts) <= 30
    for rows in range(1, 4096):
        most = 8 if rows <= 64 else 32 if rows <= 512 else 128
        assert 0 <= filled_rows(rows) - rows < most


@pytest.mark.parametrize("rows", range(9))
def test_the_counts_of_decoding_few_requests_are_exact(rows: int) -> None:
    assert filled_rows(rows) == rows
