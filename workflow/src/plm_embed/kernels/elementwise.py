"""What a layer does besides matrix products and attention: norms, residual sums, rotary angles,
all in fp32.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices

log = logging.getLogger(__name__)
ROTATED = 1 << 16
"""Numbers rotated at a time on a CPU: what its cache holds in fp32, with all terms."""


@dataclass(frozen=True)
class Norm:
    """A layer norm, or an RMS norm, which neither centers its input nor has a bias. `weight`,
    `bias` (D,) fp32.
    """

    weight: Tensor
    bias: Tensor | None
    epsilon: float = 1e-5
    rms: bool = False


class _NormOf(Protocol):
    def __call__(self, x: Tensor, by: Norm, dtype: torch.dtype) -> Tensor: ...


class _AddNormOf(Protocol):
    def __call__(self, x: Tensor, term: Tensor, by: Norm, dtype: torch.dtype) -> Tensor: ...


class _Rotate(Protocol):
    def __call__(self, qkv: Tensor, cosine: Tensor, sine: Tensor) -> None: ...


@dataclass(frozen=True)
class Elementwise:
    """One way to compute them. name: for logs and completion records.

    norm: norm of x (n, D) fp32, contiguous, in `dtype`. add_norm: the same after x += term, which
    changes x. rotate: turns q and k in qkv (n, 3, H, d) in place; cosine, sine (n, d / 2).
    """

    name: str
    norm: _NormOf
    add_norm: _AddNormOf
    rotate: _Rotate


def norm(x: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
    if by.rms:
        return F.rms_norm(x, x.shape[-1:], by.weight, by.epsilon).to(dtype)
    return F.layer_norm(x, x.shape[-1:], by.weight, by.bias, by.epsilon).to(dtype)


def _add_norm(x: Tensor, term: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
    x += term
    return norm(x, by, dtype)


def _rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """The halves of each head against each other (esm/rotary_embedding.py)."""
    pairs = qkv[:, :2]
    rows = len(qkv) if qkv.is_cuda else max(1, ROTATED // pairs[0].numel())
    parts = (
        torch.split(each, rows) for each in (pairs, cosine[:, None, None], sine[:, None, None])
    )
    for part, cos, sin in zip(*parts, strict=True):
        exact = part.float()
        left, right = exact.chunk(2, dim=-1)
        terms = left * cos, right * sin, right * cos, left * sin
        torch.sub(terms[0], terms[1], out=left)
        torch.add(terms[2], terms[3], out=right)
        if exact is not part:
            part.copy_(exact)


PLAIN = Elementwise("torch", norm, _add_norm, _rotate)


def choose(device: torch.device, dtype: torch.dtype, dim: int, heads: int) -> Elementwise:
    """Fused kernels where Triton works on this device, else torch's own operations."""
    if device.type != "cuda":
        return PLAIN
    try:
        fused = _fused()
        problem = _problem(fused, device, dtype, dim, heads)
    except Exception as error:
        # no Triton, no compiler for what it launches, a GPU that it does not know: torch's
        # operations always work
        if out_of_memory(error):  # says nothing about the kernels
            raise
        devices.synchronize(device)  # raises what it says on a device that is lost
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem:
        log.warning(
            "Triton's kernels cannot be used (%s): torch's own operations serve, more slowly",
            problem,
        )
        return PLAIN
    return fused


def _fused() -> Elementwise:
    from plm_embed.kernels import triton_elementwise as triton

    def norm(x: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
        return triton.norm(x, by.weight, by.bias, epsilon=by.epsilon, rms=by.rms, dtype=dtype)

    def add_norm(x: Tensor, term: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
        return triton.norm(
            x, by.weight, by.bias, epsilon=by.epsilon, rms=by.rms, dtype=dtype, term=term
        )

    return Elementwise("Triton", norm, add_norm, triton.rotate)


def _problem(
    tried: Elementwise, device: torch.device, dtype: torch.dtype, dim: int, heads: int
) -> str:
    """What differs from the plain operations, in words; empty when nothing does."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(1))
    rows, half = 5, dim // heads // 2
    layer = Norm(draw(dim).to(device), draw(dim).to(device))
    root = Norm(layer.weight, None, 1e-6, rms=True)
    term, qkv = draw(rows, dim).to(device, dtype), draw(rows, 3, heads, 2 * half).to(device, dtype)
    angle = draw(rows, half).to(device)
    found: list[tuple[Tensor, ...]] = []
    for each in (PLAIN, tried):
        x, turned = (
            draw(rows, dim, generator=torch.Generator().manual_seed(2)).to(device),
            qkv.clone(),
        )
        normed = [each.norm(x, by, dtype) for by in (layer, root)]
        normed += [each.add_norm(x, term, by, dtype) for by in (layer, root)]
        each.rotate(turned, angle.cos(), angle.sin())
        found.append((*normed, x, turned))
    worst = max(
        float(((ours - plain).abs() / (1 + plain.abs())).max())
        for plain, ours in zip(*found, strict=True)
    )
    return (
        ""
        if worst <= (1e-4 if dtype == torch.float32 else 0.01)
        else f"they are off by {worst:.2g}"
    )
