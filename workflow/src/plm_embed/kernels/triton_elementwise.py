"""Norms with residual sum, and rotary angles, as one pass over memory each: Triton kernels for
CUDA.

On a modern GPU the plain operations of torch take nearly as long as all matrix products of ESM-2
650M, since each of them reads and writes whole matrices. Blocks are fixed and not tuned at run
time: the order of a sum must not depend on the day.
"""

# mypy: ignore-errors
# Triton comes with the CUDA builds of torch only, and what it compiles is no ordinary Python.

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm_kernel(  # noqa: PLR0917
    x_ptr,
    term_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    width: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    add: tl.constexpr,
    center: tl.constexpr,
    shift: tl.constexpr,
):
    """One row per program: x += term, then the layer norm of x, or its RMS norm without `center`;
    `shift` adds the bias.
    """
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    inside = columns < width
    x = tl.load(x_ptr + start + columns, mask=inside, other=0.0)
    if add:
        x += tl.load(term_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_ptr + start + columns, x, mask=inside)
    if center:
        mean = tl.sum(x, axis=0) / width
        x = tl.where(inside, x - mean, 0.0)
    deviation = tl.sqrt(tl.sum(x * x, axis=0) / width + epsilon)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    y = x / deviation * weight
    if shift:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0)
    tl.store(out_ptr + start + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_kernel(  # noqa: PLR0917
    qkv_ptr,
    cosine_ptr,
    sine_ptr,
    pairs: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
):
    """One token per program: `pairs` numbers of q and k, each with the one half a head further."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, block)
    inside = pair < pairs
    angle = pair % half
    cosine = tl.load(cosine_ptr + token * half + angle, mask=inside, other=0.0)
    sine = tl.load(sine_ptr + token * half + angle, mask=inside, other=0.0)
    # q, k and v of a token follow one another, so it takes 3/2 of the room of q and k: 3 * pairs
    # numbers
    first_ptr = qkv_ptr + token * 3 * pairs + pair // half * (2 * half) + angle
    first = tl.load(first_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(first_ptr, (first * cosine - second * sine).to(qkv_ptr.dtype.element_ty), mask=inside)
    tl.store(
        first_ptr + half, (second * cosine + first * sine).to(qkv_ptr.dtype.element_ty), mask=inside
    )


def norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    epsilon: float,
    rms: bool,
    dtype: torch.dtype,
    term: Tensor | None = None,
) -> Tensor:
    """Layer or RMS norm of x (n, D) fp32 in `dtype`; `term` (n, D) is added to x, in place, before.
    All contiguous.
    """
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    warps = min(max(block // 256, 1), 16)
    _norm_kernel[(len(x),)](
        x,
        x if term is None else term,
        weight,
        weight if bias is None else bias,
        out,
        width,
        block,
        epsilon,
        term is not None,
        not rms,
        bias is not None,
        num_warps=warps,
    )
    return out


def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rotate q and k in qkv (n, 3, H, d), contiguous, in fp32 and in place; cosine, sine (n, d / 2)
    fp32.
    """
    half = cosine.shape[-1]
    pairs = 2 * qkv.shape[2] * half
    block = triton.next_power_of_2(pairs)
    _rotate_kernel[(len(qkv),)](
        qkv, cosine, sine, pairs, half, block, num_warps=min(max(block // 256, 1), 16)
    )
