"""What a layer does besides matrix products and attention: norms, residual sums, rotary angles,
activations, all in fp32.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices
from plm_embed.kernels.linear import Activation, Linear

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


Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of the rotary angles, (n, d / 2) fp32."""


class _AddNorm(Protocol):
    def __call__(self, x: Tensor, terms: list[Tensor], by: Norm, dtype: torch.dtype) -> Tensor: ...


class _PostNorm(Protocol):
    def __call__(self, x: Tensor, term: Tensor, by: Norm, dtype: torch.dtype) -> Tensor: ...


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

    add_norm: the norm in `dtype` of the residual stream x (n, D) fp32, contiguous, and of the
    terms that are still to be added to it; those that it adds to x for good leave the list.
    post_norm: x becomes its norm with a term; returns it in `dtype`. query_key: norms without bias
    of q and of k in qkv (n, 3, H, d), then their rotation, in place. up: into the feed-forward,
    its activation, times another linear layer where there is a gate.
    """

    name: str
    add_norm: _AddNorm
    post_norm: _PostNorm
    query_key: _QueryKey
    up: _Up


def norm(x: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
    if by.rms:
        return F.rms_norm(x, x.shape[-1:], by.weight, by.epsilon).to(dtype)
    return F.layer_norm(x, x.shape[-1:], by.weight, by.bias, by.epsilon).to(dtype)


def add(x: Tensor, terms: list[Tensor]) -> None:
    """x becomes its sum with all terms, which leave the list."""
    for term in terms:
        x += term
    terms.clear()


def _add_norm(x: Tensor, terms: list[Tensor], by: Norm, dtype: torch.dtype) -> Tensor:
    add(x, terms)
    return norm(x, by, dtype)


def _post_norm(x: Tensor, term: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
    x += term
    x.copy_(norm(x, by, torch.float32))
    return x.to(dtype)


def _query_key(qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None) -> None:
    for at, by in enumerate(norms or ()):
        part = qkv[:, at].flatten(1)
        qkv[:, at] = norm(part.float().contiguous(), by, qkv.dtype).view(qkv[:, at].shape)
    if rotary is not None:
        _rotate(qkv, *rotary)


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


def _up(x: Tensor, linear: Linear, gate: Linear | None, activation: Activation) -> Tensor:
    return linear(x, activation) if gate is None else gate(x, activation).mul_(linear(x))


PLAIN = Elementwise("torch", _add_norm, _post_norm, _query_key, _up)


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

    def normed(
        x: Tensor, terms: tuple[Tensor, ...], by: Norm, dtype: torch.dtype, keep: int
    ) -> Tensor:
        return triton.norm(
            x, by.weight, by.bias, epsilon=by.epsilon, rms=by.rms, dtype=dtype, terms=terms,
            keep=keep,
        )  # fmt: skip

    def add_norm(x: Tensor, terms: list[Tensor], by: Norm, dtype: torch.dtype) -> Tensor:
        # to read the first of two terms once more is less than to write its sum
        y = normed(x, tuple(terms), by, dtype, keep=1 if len(terms) == 2 else 0)
        if len(terms) == 2:
            terms.clear()
        return y

    def post_norm(x: Tensor, term: Tensor, by: Norm, dtype: torch.dtype) -> Tensor:
        return normed(x, (term,), by, dtype, keep=2)

    def query_key(qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None) -> None:
        weights = None if norms is None else (norms[0].weight, norms[1].weight)
        triton.query_key(qkv, weights, 0.0 if norms is None else norms[0].epsilon, rotary)

    def up(x: Tensor, linear: Linear, gate: Linear | None, activation: Activation) -> Tensor:
        if gate is None:
            if activation == "relu":  # no pass of its own
                return linear(x, activation)
            return triton.activate(linear(x), activation)
        return triton.activate(gate(x), activation, linear(x))

    return Elementwise("Triton, activations too", add_norm, post_norm, query_key, up)


def _problem(
    tried: Elementwise, device: torch.device, dtype: torch.dtype, dim: int, heads: int
) -> str:
    """What differs from the plain operations, in words; empty when nothing does."""
    found = [
        [part.float().cpu() for part in _trial(each, device, dtype, dim, heads)]
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
    each: Elementwise, device: torch.device, dtype: torch.dtype, dim: int, heads: int
) -> Iterable[Tensor]:
    """What they make of a few random numbers."""
    random = torch.Generator().manual_seed(1)

    def draw(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=random).to(device, kind)

    rows, half = 5, dim // heads // 2
    layer = Norm(draw(dim), draw(dim))
    root = Norm(layer.weight, None, 1e-6, rms=True)
    for by in (layer, root):
        x, terms = draw(rows, dim), list[Tensor]()
        for _ in range(3):  # none, one and two terms
            yield each.add_norm(x, terms, by, dtype)
            terms.append(draw(rows, dim, kind=dtype))
        add(x, terms)
        yield x.clone()
        yield each.post_norm(x, draw(rows, dim, kind=dtype), by, dtype)
        yield x
    angle = draw(rows, half)
    norms = Norm(draw(dim), None), Norm(draw(dim), None)
    for pair in (None, norms):
        qkv = draw(rows, 3, heads, 2 * half, kind=dtype)
        each.query_key(qkv, pair, (angle.cos(), angle.sin()))
        yield qkv
    x = draw(rows, dim, kind=dtype)
    linear, gate = (Linear(draw(64, dim, kind=dtype) / dim**0.5, None) for _ in range(2))
    activations: tuple[Activation, ...] = ("gelu", "gelu_tanh", "relu", "silu")
    for activation in activations:
        yield each.up(x, linear, None, activation)
        yield each.up(x, linear, gate, activation)
