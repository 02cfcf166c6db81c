"""The product with a weight as it lies in the checkpoint: row-major, one row an output."""

import torch
from torch.nn import functional


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]; gives [rows, out] in x's dtype.

    On the CPU the rows are filled up to one of a few counts: oneDNN generates and keeps code for each count that
    it meets, about 0.7 MB and 2 ms for each weight's shape, which over a day of mixed requests is a gigabyte.
    """
    rows = x.shape[0]
    filled = rows if x.device.type != "cpu" else filled_rows(rows)
    if filled == rows:
        # torch.mv for a single row is 1.4 times as fast on a CPU with AMX, but half as fast on one without.
        return functional.linear(x, weight, bias)
    return functional.linear(functional.pad(x, (0, 0, 0, filled - rows)), weight, bias)[:rows]


def filled_rows(rows: int) -> int:
    """The count that `rows` rows are computed as: exact up to 8, then the next multiple of 8, 32 or 128."""
    if rows <= 8:
        return rows
    step = 8 if rows <= 64 else 32 if rows <= 512 else 128
    return -(-rows // step) * step
