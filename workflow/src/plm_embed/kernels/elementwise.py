"""What a layer does besides matrix products and attention: norms, residual sums, rotary angles,
activations, all in fp32.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices
from plm_embed.kernels.linear import Activation, Linear
from plm_embed.kernels.packed import Rotary

log = logging.getLogger(__name__)
ROTATED = 1 << 16
"""Numbers rotated at a time on a CPU: what its cache holds in fp32, with all terms."""
UP = 300, 256
"""Rows and columns of the feed-forward that is tried: several tiles of a product."""


@dataclass(frozen=True)
class Norm:
    """A layer norm, or an RMS norm, which neither centers its input nor has a bias. `weight`,
    `bias` (D,) fp32.

    missing: (D,) fp32, what the input lacks: biases of the products that were added to it.
    """

    weight: Tensor
    bias: Tensor | None
    epsilon: float = 1e-5
    rms: bool = False
    missing: Tensor | None = None


class _Norm(Protocol):
    def __call__(
        self, x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False
    ) -> Tensor: ...


class _Add(Protocol):
    def __call__(self, x: Tensor, linear: Linear, y: Tensor) -> None: ...


class _QueryKey(Protocol):
    def __call__(
        self, qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None
    ) -> None: ...


class _Up(Protocol):
    def __call__(
        self, x: Tensor, linear: Linear, gate: Linear | None, activation: Activation
    ) -> Tensor: ...


@dataclass(frozen=True)
class Elementwise:
    """One way to compute them. name: for logs and completion records.

    norm: the norm in `dtype` of the residual stream x (n, D) fp32, contiguous; with `keep` x
    becomes it. add: x becomes its sum with a linear layer's result for y. query_key: norms without
    bias of q and of k in qkv (n, 3, H, d), then their rotation, in place. up: the activated product
    that leads into the feed-forward; with a gate, the gate's activated product times the other one.
    """

    name: str
    norm: _Norm
    add: _Add
    query_key: _QueryKey
    up: _Up


def norm(x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
    if keep:
        return x.copy_(norm(x, by, torch.float32)).to(dtype)
    if by.missing is not None:
        x = x + by.missing
    if by.rms:
        return F.rms_norm(x, x.shape[-1:], by.weight, by.epsilon).to(dtype)
    return F.layer_norm(x, x.shape[-1:], by.weight, by.bias, by.epsilon).to(dtype)


def _add(x: Tensor, linear: Linear, y: Tensor) -> None:
    x += linear(y)


def _query_key(qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None) -> None:
    for at, by in enumerate(norms or ()):
        part = qkv[:, at].flatten(1)
        qkv[:, at] = norm(part.float().contiguous(), by, qkv.dtype).view(qkv[:, at].shape)
    if rotary is not None:
        rotate(qkv, *rotary)


def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> None:
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


def _up(x: Tensor, linear: Linear, gate: Linear | None, activation: Activation) -> Tensor:
    return linear(x, activation) if gate is None else gate(x, activation).mul_(linear(x))


PLAIN = Elementwise("torch", norm, _add, _query_key, _up)


@dataclass(frozen=True)
class Form:
    """What they are for: a model's width and heads, and its way into the feed-forward."""

    dim: int
    heads: int
    activation: Activation
    gated: bool
    biased: bool


def choose(device: torch.device, dtype: torch.dtype, form: Form) -> Elementwise:
    """Fused kernels where Triton works on this device, else torch's own operations."""
    if device.type != "cuda":
        return PLAIN
    for within in (True, False) if _product_pays(device, dtype) else (False,):
        try:
            fused = _fused(within)
            problem = _problem(fused, device, dtype, form)
        except Exception as error:
            # no Triton, no compiler for what it launches, a GPU that it does not know: torch's
            # operations always work
            if out_of_memory(error):  # says nothing about the kernels
                raise
            devices.synchronize(device)  # raises what it says on a device that is lost
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if not problem:
            return fused
        log.warning("not Triton's %s: %s", "product" if within else "kernels", problem)
    log.warning("torch's own operations serve, more slowly (docs/speed.md has what Triton needs)")
    return PLAIN


def _product_pays(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton's product with the activation in it beats cuBLAS's product and a pass, on
    paper: its memory is slow beside its arithmetic on Ada, and Triton's products are as fast as
    cuBLAS's there (benchmarks/README.md).
    """
    return dtype != torch.float32 and torch.cuda.get_device_capability(device) == (8, 9)


def _fused(within: bool) -> Elementwise:
    """`within`: activations are parts of Triton's product, where its tiles fit."""
    from plm_embed.kernels import triton_elementwise as triton
    from plm_embed.kernels import triton_product as product

    def normed(x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        return triton.norm(
            x, by.weight, by.bias, by.missing, epsilon=by.epsilon, rms=by.rms, dtype=dtype,
            keep=keep,
        )  # fmt: skip

    def add(x: Tensor, linear: Linear, y: Tensor) -> None:
        linear.add_to(x, y)

    def query_key(qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None) -> None:
        weights = None if norms is None else (norms[0].weight, norms[1].weight)
        triton.query_key(qkv, weights, 0.0 if norms is None else norms[0].epsilon, rotary)

    def up(x: Tensor, linear: Linear, gate: Linear | None, activation: Activation) -> Tensor:
        if gate is None and activation == "relu":  # no pass of its own
            return linear(x, activation)
        if within and product.fits(linear.weight):
            by = None if gate is None else (gate.weight, gate.bias)
            return product.up(x, (linear.weight, linear.bias), by, activation)
        if gate is None:
            return triton.activate(linear(x), activation)
        return triton.activate(gate(x), activation, linear(x))

    parts = "sums and activations" if within else "sums"
    return Elementwise(f"Triton, {parts} within products", normed, add, query_key, up)


def _problem(tried: Elementwise, device: torch.device, dtype: torch.dtype, form: Form) -> str:
    """What differs from the plain operations, in words; empty when nothing does."""
    found = [
        [part.float().cpu() for part in _trial(each, device, dtype, form)]
        for each in (PLAIN, tried)
    ]
    worst = max(
        float(((ours - plain).abs() / (1 + plain.abs())).max())
        for plain, ours in zip(*found, strict=True)
    )
    return (
        ""
        if worst <= (1e-4 if dtype == torch.float32 else 0.015)
        else f"they are off by {worst:.2g}"
    )


def _trial(
    each: Elementwise, device: torch.device, dtype: torch.dtype, form: Form
) -> Iterable[Tensor]:
    """What they make of a few random numbers."""
    random = torch.Generator().manual_seed(1)

    def draw(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=random).to(device, kind)

    rows, dim, heads = 5, form.dim, form.heads
    half = dim // heads // 2
    layer = Norm(draw(dim), draw(dim))
    root = Norm(layer.weight, None, 1e-6, rms=True)
    x, out = draw(rows, dim), Linear(draw(dim, dim, kind=dtype) / dim**0.5, None)
    for by in (layer, root, replace(layer, missing=draw(dim))):
        each.add(x, out, draw(rows, dim, kind=dtype))
        yield x.clone()
        yield each.norm(x, by, dtype)
        yield each.norm(x, by, dtype, keep=True).clone()  # it may be x itself
        yield x.clone()
    angle = draw(rows, half)
    norms = Norm(draw(dim), None), Norm(draw(dim), None)
    for pair in (None, norms):
        qkv = draw(rows, 3, heads, 2 * half, kind=dtype)
        each.query_key(qkv, pair, (angle.cos(), angle.sin()))
        yield qkv
    rows, width = UP
    linear, gate = (
        Linear(
            draw(width, dim, kind=dtype) / dim**0.5,
            draw(width, kind=dtype) if form.biased else None,
        )
        for _ in range(2)
    )
    x = draw(rows, dim, kind=dtype)
    yield each.up(x, linear, gate if form.gated else None, form.activation)
