"""Attention with biases by distance over packed sequences: a Triton kernel for CUDA, since
FlashAttention adds no biases.

A program computes some queries of one head of one sequence, over blocks of its keys from the first
to the last. Blocks are fixed and begin with the sequence, so its bits do not depend on its company.
Scores, biases and sums are fp32 and stay on the chip: no mask is written out.
"""

# mypy: ignore-errors
# Triton comes with the CUDA builds of torch only, and what it compiles is no ordinary Python.

import torch
import triton
import triton.language as tl
from torch import Tensor

from plm_embed.kernels.attention import Packed


# one machine code for all batches: their numbers of blocks and distances choose none
@triton.jit(do_not_specialize=["blocks", "distances"])
def _attend_kernel(  # noqa: PLR0917
    qkv_ptr,
    out_ptr,
    boundaries_ptr,
    table_ptr,
    scale,
    blocks,
    distances,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    queries: tl.constexpr,
    keys: tl.constexpr,
):
    """`blocks` programs per sequence, of which short ones use the first; `distances` numbers per
    head in the table, that of distance 0 in the middle.
    """
    sequence = tl.program_id(0) // blocks
    first_query = tl.program_id(0) % blocks * queries
    head = tl.program_id(1)
    start = tl.load(boundaries_ptr + sequence).to(tl.int64)
    length = tl.load(boundaries_ptr + sequence + 1) - start.to(tl.int32)
    if first_query < length:
        step: tl.constexpr = 3 * heads * width  # from a token to the next
        column = tl.arange(0, block)
        inside = column[None, :] < width
        query = first_query + tl.arange(0, queries)
        valid = query < length
        q_ptr = qkv_ptr + start * step + head * width
        q = tl.load(
            q_ptr + query.to(tl.int64)[:, None] * step + column[None, :],
            mask=valid[:, None] & inside,
            other=0.0,
        )
        middle_ptr = table_ptr + head * distances + distances // 2
        best = tl.full([queries], float("-inf"), tl.float32)
        total = tl.zeros([queries], tl.float32)
        mixed = tl.zeros([queries, block], tl.float32)
        for first_key in range(0, length, keys):
            key = first_key + tl.arange(0, keys)
            seen = key < length
            k_ptr = q_ptr + heads * width + key.to(tl.int64)[:, None] * step + column[None, :]
            k = tl.load(k_ptr, mask=seen[:, None] & inside, other=0.0)
            bias = tl.load(
                middle_ptr + key[None, :] - query[:, None],
                mask=valid[:, None] & seen[None, :],
                other=0.0,
            )
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + bias
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, axis=1))
            weights = tl.exp(scores - higher[:, None])
            fade = tl.exp(best - higher)
            total = total * fade + tl.sum(weights, axis=1)
            v = tl.load(k_ptr + heads * width, mask=seen[:, None] & inside, other=0.0)
            mixed = mixed * fade[:, None]
            mixed += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            best = higher
        tl.store(
            out_ptr + (start + query)[:, None] * (heads * width) + head * width + column[None, :],
            (mixed / total[:, None]).to(out_ptr.dtype.element_ty),
            mask=valid[:, None] & inside,
        )


def shape(width: int) -> tuple[int, int, int, int]:
    """Numbers of a padded head, queries, keys at a time and warps, for heads of `width`.

    With these no register is spilled to memory on the A100 and the H200: a thread takes 203 and 161
    for heads of 64, 192 and 185 for heads of 128.
    """
    block = max(16, triton.next_power_of_2(width))
    return (block, 128, 32, 8) if block > 64 else (block, 64, 64, 4)


def attend(qkv: Tensor, packed: Packed) -> Tensor:
    """qkv (T, 3, H, d), contiguous, of sequences with biases by distance -> (T, D), zero behind the
    last one.
    """
    assert packed.distances is not None
    _, _, heads, width = qkv.shape
    out = torch.empty((len(qkv), heads * width), dtype=qkv.dtype, device=qkv.device)
    block, queries, keys, warps = shape(width)
    blocks = triton.cdiv(max(packed.lengths), queries)
    _attend_kernel[(len(packed.lengths) * blocks, heads)](
        qkv,
        out,
        packed.boundaries,
        packed.distances.table,
        packed.distances.scale,
        blocks,
        packed.distances.table.shape[1],
        heads,
        width,
        block,
        queries,
        keys,
        num_warps=warps,
    )
    out[sum(packed.lengths) :] = 0
    return out
