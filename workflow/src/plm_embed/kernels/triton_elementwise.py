"""Operations of a layer besides matrix products and attention, as one pass over memory each: Triton
kernels for CUDA.

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

from plm_embed.kernels.elementwise import Elementwise

ACTIVATE_BLOCK, ACTIVATE_WARPS = 1024, 4
"""Numbers of one program, 8 of each thread: 16 bytes of half precision."""


@triton.jit
def _norm_kernel(  # noqa: PLR0917
    x_ptr,
    missing_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    width: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    lacking: tl.constexpr,
    keep: tl.constexpr,
    center: tl.constexpr,
    shift: tl.constexpr,
):
    """One row per program: the layer norm of x, or the RMS norm without `center`; `lacking` adds
    what is missing before, `shift` the bias after it, `keep` writes the norm to x too.
    """
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    inside = columns < width
    x = tl.load(x_ptr + start + columns, mask=inside, other=0.0)
    if lacking:
        x += tl.load(missing_ptr + columns, mask=inside, other=0.0)
    if center:
        mean = tl.sum(x, axis=0) / width
        x = tl.where(inside, x - mean, 0.0)
    deviation = tl.sqrt(tl.sum(x * x, axis=0) / width + epsilon)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    y = x / deviation * weight
    if shift:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0)
    if keep:
        tl.store(x_ptr + start + columns, y, mask=inside)
    tl.store(out_ptr + start + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _query_key_kernel(  # noqa: PLR0917
    qkv_ptr,
    query_weight_ptr,
    key_weight_ptr,
    cosine_ptr,
    sine_ptr,
    pairs: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
    epsilon: tl.constexpr,
    norm: tl.constexpr,
    center: tl.constexpr,
    rotate: tl.constexpr,
):
    """One token's q or k per program: `pairs` numbers, each with the one half a head further, in
    a layer norm without bias over all heads, or an RMS norm without `center`, then rotated.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pair = tl.arange(0, block)
    inside = pair < pairs
    angle = pair % half
    place = pair // half * (2 * half) + angle
    # q, k and v of a token follow one another: 2 * pairs numbers each
    first_ptr = qkv_ptr + token * 6 * pairs + part * 2 * pairs + place
    first = tl.load(first_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + half, mask=inside, other=0.0).to(tl.float32)
    if norm:
        if center:
            mean = (tl.sum(first, axis=0) + tl.sum(second, axis=0)) / (2 * pairs)
            first = tl.where(inside, first - mean, 0.0)
            second = tl.where(inside, second - mean, 0.0)
        squares = tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)
        deviation = tl.sqrt(squares / (2 * pairs) + epsilon)
        weight_ptr = query_weight_ptr + place if part == 0 else key_weight_ptr + place
        first = first / deviation * tl.load(weight_ptr, mask=inside, other=0.0)
        second = second / deviation * tl.load(weight_ptr + half, mask=inside, other=0.0)
    if rotate:
        cosine = tl.load(cosine_ptr + token * half + angle, mask=inside, other=0.0)
        sine = tl.load(sine_ptr + token * half + angle, mask=inside, other=0.0)
        turned = first * cosine - second * sine
        second = second * cosine + first * sine
        first = turned
    tl.store(first_ptr, first.to(qkv_ptr.dtype.element_ty), mask=inside)
    tl.store(first_ptr + half, second.to(qkv_ptr.dtype.element_ty), mask=inside)


@triton.jit
def activated(x, activation: tl.constexpr, exact: tl.constexpr):
    """The activation of fp32 numbers; GELU as fp32 holds it with `exact`, else as half precision
    does.

    erf takes 36 instructions a number, which an H200 needs longer for than the memory for the
    number. Half precision needs fewer digits: log2 of the normal distribution's tail, by a
    polynomial that is off by 4e-6 of GELU at most from 0 to 5.5, and falls behind that.
    """
    if activation == "gelu":
        if exact:
            y = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
        else:
            far = tl.abs(x)
            tail = far * -1.79429326e-06 + 6.09186767e-05
            tail = tail * far - 9.26121895e-04
            tail = tail * far + 8.49401505e-03
            tail = tail * far - 5.39380754e-02
            tail = tail * far - 4.58480703e-01
            tail = tail * far - 1.15124652e00
            tail = tail * far - 9.99995493e-01
            y = tl.maximum(x, 0.0) - far * tl.exp2(tail)
    elif activation == "gelu_tanh":  # 0.5 (1 + tanh(u)) is the logistic of 2 u
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif activation == "silu":
        y = x * tl.sigmoid(x)
    else:
        tl.static_assert(activation == "relu")
        y = tl.maximum(x, 0.0)
    return y


@triton.jit
def _activate_kernel(  # noqa: PLR0917
    x_ptr, by_ptr, count, activation: tl.constexpr, gated: tl.constexpr, block: tl.constexpr
):
    """x becomes its activation, or with `gated` that times `by`; `count` numbers."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    y = activated(x, activation, x_ptr.dtype.element_ty == tl.float32)
    if gated:
        y *= tl.load(by_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ptr + place, y.to(x_ptr.dtype.element_ty), mask=inside)


class Fused(Elementwise):
    """Each operation as one kernel, of contiguous tensors; sums within products."""

    name = "Triton, sums within products"

    def norm(self, x, by, dtype, *, keep=False):
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        width = x.shape[1]
        block = triton.next_power_of_2(width)
        _norm_kernel[(len(x),)](
            x,
            by.weight if by.missing is None else by.missing,
            by.weight,
            by.weight if by.bias is None else by.bias,
            out,
            width,
            block,
            by.epsilon,
            by.missing is not None,
            keep,
            not by.rms,
            by.bias is not None,
            num_warps=_warps(block),
        )
        return out

    def add(self, x, linear, y):
        linear.add_to(x, y)

    def query_key(self, qkv, norms, rotary):
        half = qkv.shape[3] // 2
        pairs = qkv.shape[2] * half
        block = triton.next_power_of_2(pairs)
        cosine, sine = (qkv, qkv) if rotary is None else rotary
        query, key = (qkv, qkv) if norms is None else (norms[0].weight, norms[1].weight)
        _query_key_kernel[(len(qkv), 2)](
            qkv,
            query,
            key,
            cosine,
            sine,
            pairs,
            half,
            block,
            0.0 if norms is None else norms[0].epsilon,
            norms is not None,
            norms is None or not norms[0].rms,
            rotary is not None,
            num_warps=_warps(block),
        )

    def up(self, x, linear, gate, activation):
        if gate is None and activation == "relu":  # no pass of its own
            return linear(x, activation)
        if gate is None:
            return activate(linear(x), activation)
        return activate(gate(x), activation, linear(x))


def activate(x: Tensor, activation: str, by: Tensor | None = None) -> Tensor:
    """x (n, D), contiguous, which becomes its activation, times `by` where there is one."""
    _activate_kernel[(triton.cdiv(x.numel(), ACTIVATE_BLOCK),)](
        x,
        x if by is None else by,
        x.numel(),
        activation,
        by is not None,
        ACTIVATE_BLOCK,
        num_warps=ACTIVATE_WARPS,
    )
    return x


def _warps(block: int) -> int:
    """Return the warps of a program over so many numbers: 8 of each thread, 16 bytes of half
    precision.
    """
    return min(max(block // 256, 1), 16)
