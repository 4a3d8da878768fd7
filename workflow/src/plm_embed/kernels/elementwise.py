"""Operations of a layer besides matrix products and attention: norms, residual sums, rotary angles,
activations, all in fp32.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from plm_embed.accuracy import FALLBACK
from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices
from plm_embed.kernels.linear import Activation, Linear

log = logging.getLogger(__name__)
Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of the rotary angles, (T, d / 2) fp32."""
ROTATED = 1 << 16
"""Numbers rotated at a time on a CPU: what its cache holds in fp32, with all terms."""
UP = 300, 256
"""Rows and columns of the feed-forward that is tried: several tiles of a product."""
DEPTH = 256
"""Columns of the product that is tried with a sum within it."""
ROUNDED = 3
"""Bound on the distance of a kernel from exact arithmetic, in steps (`eps`) of its dtype, at the
result or at 1, whichever is larger.

A right one rounds where a product ends (with a gate, where two of them do) and where it writes its
result, by half a step each time: those here stay below 1.5 steps for every model.
"""
SUMMED = 1e-4
"""Bound in float32, which sums thousands of numbers in another order: 2e-6 was seen."""
TF32 = 2.0**-10
"""A step of what products read in TF32."""


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


class Elementwise:
    """These operations by torch's own; `triton_elementwise.Fused` has faster ones for CUDA."""

    name = "torch"
    """For logs and completion records."""

    def norm(self, x: Tensor, by: Norm, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """Return the norm in `dtype` of the residual stream x (n, D) fp32, contiguous; with `keep`
        x becomes it.
        """
        whole = x if by.missing is None else x + by.missing
        if by.rms:
            y = F.rms_norm(whole, x.shape[-1:], by.weight, by.epsilon)
        else:
            y = F.layer_norm(whole, x.shape[-1:], by.weight, by.bias, by.epsilon)
        return (x.copy_(y) if keep else y).to(dtype)

    def add(self, x: Tensor, linear: Linear, y: Tensor) -> None:
        """Make x (n, D) fp32 its sum with a linear layer's result for y."""
        x += linear(y)

    def query_key(
        self, qkv: Tensor, norms: tuple[Norm, Norm] | None, rotary: Rotary | None
    ) -> None:
        """Norm, without bias over all heads, and then rotate q and k in qkv (n, 3, H, d), in place;
        either may be None. The halves of each head turn against each other
        (esm/rotary_embedding.py).
        """
        for part, by in zip(qkv.unbind(1), norms or (), strict=False):
            flat = part.flatten(1).float().contiguous()
            part.copy_(self.norm(flat, by, qkv.dtype).view(part.shape))
        if rotary is None:
            return
        pairs = qkv[:, :2]
        rows = len(qkv) if qkv.is_cuda else max(1, ROTATED // pairs[0].numel())
        parts = (torch.split(x, rows) for x in (pairs, *(x[:, None, None] for x in rotary)))
        for part, cos, sin in zip(*parts, strict=True):
            exact = part.float()
            left, right = exact.chunk(2, dim=-1)
            terms = left * cos, right * sin, right * cos, left * sin
            torch.sub(terms[0], terms[1], out=left)
            torch.add(terms[2], terms[3], out=right)
            if exact is not part:
                part.copy_(exact)

    def up(self, x: Tensor, linear: Linear, gate: Linear | None, activation: Activation) -> Tensor:
        """Return the activated product that leads into the feed-forward; with a gate, the gate's
        activated product times the other one.
        """
        return linear(x, activation) if gate is None else gate(x, activation).mul_(linear(x))


PLAIN = Elementwise()


@dataclass(frozen=True)
class Form:
    """Shape of the model that kernels are chosen for: its widths, of all heads together `inner`,
    and what its layers do.

    normed: queries and keys have norms; turned: they are rotated. biased: the products into the
    feed-forward have biases.
    """

    dim: int
    heads: int
    activation: Activation
    inner: int = 0
    gated: bool = False
    biased: bool = True
    rms: bool = False
    epsilon: float = 1e-5
    normed: bool = False
    turned: bool = True


def choose(device: torch.device, dtype: torch.dtype, form: Form) -> Elementwise:
    """Fused kernels where Triton works on this GPU, else torch's own operations, whose name then
    says why.
    """
    try:
        from plm_embed.kernels.triton_elementwise import Fused

        fused: Elementwise = Fused()
        wrong = problem(fused, device, dtype, form)
    except Exception as error:
        # no Triton, no compiler for what it launches, a GPU that it does not know: torch's
        # operations always work
        if out_of_memory(error):  # says nothing about the kernels
            raise
        devices.synchronize(device)  # raises what it says on a device that is lost
        wrong = f"{type(error).__name__}: {error}".splitlines()[0]
    if not wrong:
        return fused
    wrong = f"Triton's kernels: {wrong}"
    slower = "which is slower (docs/speed.md has what Triton needs)"
    log.warning("torch's own operations are used for %s, %s", wrong, slower)
    plain = Elementwise()
    plain.name += f" ({FALLBACK}{wrong})"
    return plain


def problem(tried: Elementwise, device: torch.device, dtype: torch.dtype, form: Form) -> str:
    """Return what is wrong with kernels that compute in `dtype`; empty when nothing is.

    They are compared with float32 arithmetic on the CPU on the same numbers, which `dtype` holds.
    """
    pairs = zip(
        _trial(tried, device, dtype, form, dtype),
        _trial(PLAIN, torch.device("cpu"), dtype, form, torch.float32),
        strict=True,
    )
    apart = [
        ((result.float().cpu() - exact).abs() / (1 + exact.abs())).max() for result, exact in pairs
    ]
    worst = float(torch.stack(apart).max())  # not a number if one of them is not
    matmul = torch.backends.cuda.matmul
    newer = getattr(matmul, "fp32_precision", None)  # torch 2.9 or later
    tf32 = matmul.allow_tf32 if newer is None else newer == "tf32"
    step = TF32 if tf32 and dtype == torch.float32 else torch.finfo(dtype).eps
    return "" if worst <= max(ROUNDED * step, SUMMED) else f"they are off by {worst:.2g}"


def _trial(
    way: Elementwise,
    device: torch.device,
    dtype: torch.dtype,
    form: Form,
    arithmetic: torch.dtype,
) -> Iterator[Tensor]:
    """Results of `way` in `arithmetic` for a few random numbers that `dtype` holds.

    Rows have means other than 0, which a norm must take away or must not, and the first is so small
    that the norm's epsilon counts.
    """
    random = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    def held(numbers: Tensor) -> Tensor:
        return numbers.to(dtype).to(device, arithmetic)

    def linear(rows: int, columns: int, biased: bool) -> Linear:
        weight = held(draw(rows, columns) / columns**0.5)
        return Linear(weight, held(draw(rows)) if biased else None)

    dim, inner = form.dim, form.inner or form.dim
    scales = torch.tensor((0.003, 0.1, 1.0, 10.0, 100.0))[:, None]
    rows = len(scales)
    stream = draw(rows, dim).to(device)
    way.add(stream, linear(dim, DEPTH, biased=False), held(draw(rows, DEPTH)))
    yield stream

    numbers = (scales * (1 + draw(rows, dim))).to(device)
    weight, bias, missing = (draw(dim).to(device) for _ in range(3))
    plain = Norm(weight, None, form.epsilon, form.rms)
    for by in [plain] if form.rms else [plain, replace(plain, bias=bias)]:
        for lacking in (by, replace(by, missing=missing)):
            yield way.norm(numbers.clone(), lacking, arithmetic)
            x = numbers.clone()
            yield way.norm(x, lacking, arithmetic, keep=True).clone()  # it may be x itself
            yield x

    if form.normed or form.turned:
        qkv = held(1 + draw(rows, 3, form.heads, inner // form.heads))
        norms = tuple(replace(plain, weight=draw(inner).to(device)) for _ in range(2))
        angle = draw(rows, inner // form.heads // 2).to(device)
        way.query_key(
            qkv,
            (norms[0], norms[1]) if form.normed else None,
            (angle.cos(), angle.sin()) if form.turned else None,
        )
        yield qkv

    tall, wide = UP
    up, gate = (linear(wide, dim, form.biased) for _ in range(2))
    yield way.up(held(draw(tall, dim)), up, gate if form.gated else None, form.activation)
