"""What a layer does to a row, with the same bits whatever rows stand beside it.

A library's product picks its kernel, and with it the order in which a row is summed, by how many rows there are.
Here it always sees the same number: rows are taken in blocks, and the last is filled up. Within a block of fixed
size a row's bits depend neither on its place nor on the other rows (tests/kernels proves that for what is installed).
The norms and the rotation need no twin: they treat each row alike already.
"""

import torch
from torch.nn import functional

# A product with so few rows takes about as long as with one, since it waits for the weights. Measured on SmolLM2's
# shape, two cores with AMX: decoding gets slower above, prompts get slower below.
BLOCK_ROWS = 32


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]; gives [rows, out] in x's dtype."""
    rows = x.shape[0]
    filled = functional.pad(x, (0, 0, 0, -rows % BLOCK_ROWS)).contiguous()
    blocks = [functional.linear(block, weight, bias) for block in torch.split(filled, BLOCK_ROWS)]
    return (blocks[0] if len(blocks) == 1 else torch.cat(blocks))[:rows]


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where gate_up [rows, 2 * width] holds gate and up side by side; gives [rows, width].

    torch's own silu has one formula for whole vector registers and another for what is left over at the end of
    a thread's share, which lies in another row each time; its exp has one for both.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    wide = gate.float()
    return wide.div(wide.neg().exp_().add_(1.0)).to(gate.dtype).mul_(up)
