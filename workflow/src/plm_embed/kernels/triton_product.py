"""The first product of the feed-forward with its bias and activation, and the gate's beside it, as
one Triton kernel for CUDA: what lies between a product and its activation never leaves the chip.

A program computes a tile of the result, over blocks of columns from the first to the last. Tiles
and blocks are fixed, so a row has equal bits in any company.
"""

# mypy: ignore-errors
# Triton comes with the CUDA builds of torch only, and what it compiles is no ordinary Python.

import torch
import triton
import triton.language as tl
from torch import Tensor

from plm_embed.kernels.triton_elementwise import activated

ROWS, COLUMNS, DEPTH = 128, 128, 32
"""Of a tile, with a gate half as many columns of each product, and of what is summed at a time."""
GROUP = 8
"""Tiles of rows that go through the columns together, so that the cache keeps their weights."""
WARPS, STAGES = 4, 4
"""The fastest of Triton's product without an epilogue at 4096 and 8192 on an Ada GPU (v1olegrace,
triton-kernel-lab, matmul_fp32acc.json).
"""


# one machine code for all batches: their number of rows chooses none
@triton.jit(do_not_specialize=["rows"])
def _up_kernel(  # noqa: PLR0917
    x_ptr,
    up_ptr,
    up_bias_ptr,
    gate_ptr,
    gate_bias_ptr,
    out_ptr,
    rows,
    width,
    inner,
    activation: tl.constexpr,
    gated: tl.constexpr,
    biased: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    depth: tl.constexpr,
    group: tl.constexpr,
):
    """out (rows, width) = the activation of x (rows, inner) up^T, or of x gate^T, times x up^T."""
    tall, wide = tl.cdiv(rows, tile_rows), width // tile_columns
    at = tl.program_id(0)
    first = at // (group * wide) * group
    many = tl.minimum(tall - first, group)
    row = (first + at % (group * wide) % many) * tile_rows + tl.arange(0, tile_rows)
    column = at % (group * wide) // many * tile_columns + tl.arange(0, tile_columns)
    k = tl.arange(0, depth)
    # rows behind the last one are others once more, and not stored
    x_ptrs = x_ptr + (row % rows).to(tl.int64)[:, None] * inner + k[None, :]
    part = column.to(tl.int64)[None, :] * inner + k[:, None]
    up_ptrs, gate_ptrs = up_ptr + part, gate_ptr + part
    up = tl.zeros([tile_rows, tile_columns], tl.float32)
    gate = up
    for _ in range(0, inner, depth):
        x = tl.load(x_ptrs)
        up = tl.dot(x, tl.load(up_ptrs), up, input_precision="ieee")
        if gated:
            gate = tl.dot(x, tl.load(gate_ptrs), gate, input_precision="ieee")
        x_ptrs += depth
        up_ptrs += depth
        gate_ptrs += depth
    if biased:
        up += tl.load(up_bias_ptr + column).to(tl.float32)[None, :]
        if gated:
            gate += tl.load(gate_bias_ptr + column).to(tl.float32)[None, :]
    y = activated(gate, activation, False) * up if gated else activated(up, activation, False)
    tl.store(
        out_ptr + row.to(tl.int64)[:, None] * width + column[None, :],
        y.to(out_ptr.dtype.element_ty),
        mask=(row < rows)[:, None],
    )


def fits(weight: Tensor) -> bool:
    """Whether tiles cover weights (out, in) of half precision exactly."""
    width, inner = weight.shape
    return weight.element_size() == 2 and width % COLUMNS == 0 and inner % DEPTH == 0


Weights = tuple[Tensor, Tensor | None]
"""Weights (out, in) and biases (out,) of a linear layer."""


def up(x: Tensor, by: Weights, gate: Weights | None, activation: str) -> Tensor:
    """x (n, in), contiguous -> (n, out): its product with the weights `by`, activated; with a gate,
    its product with the gate's weights, activated, times that with `by`. Both have biases, or
    neither has.
    """
    weight, bias = by
    gate_weight, gate_bias = gate or by
    rows, width = len(x), len(weight)
    columns = COLUMNS if gate is None else COLUMNS // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    _up_kernel[(triton.cdiv(rows, ROWS) * (width // columns),)](
        x,
        weight,
        weight if bias is None else bias,
        gate_weight,
        weight if gate_bias is None else gate_bias,
        out,
        rows,
        width,
        x.shape[1],
        activation,
        gate is not None,
        bias is not None,
        ROWS,
        columns,
        DEPTH,
        GROUP,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out
