"""Attention within each of several packed sequences, by the best kernel that a device has for a
dtype.

Every kernel here computes a sequence's rows by operations whose shapes and order depend on that
sequence alone, so its bits do not depend on its company. `math` is the exception: it serves where
torch has nothing better.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices

log = logging.getLogger(__name__)
SCORE_BYTES = 1 << 20
"""Scores alive at a time on a CPU: what its cache holds."""


@dataclass(frozen=True)
class Packed:
    """Where the sequences lie in the rows: `lengths`, and on the device `boundaries` (n + 1,)
    int32, 0 first.
    """

    lengths: tuple[int, ...]
    boundaries: Tensor


Attend = Callable[[Tensor, Packed], Tensor]
"""qkv (T, 3, H, d) and the sequences in it -> (T, D), contiguous; zero in the rows behind the last
sequence.
"""


@dataclass(frozen=True)
class Kernel:
    """One way to compute attention.

    label: its part of the engine's name in the fingerprint; kernels that differ by more than
    rounding bits have different ones. name: for logs and completion records.
    """

    label: str
    name: str
    attend: Attend

    def __call__(self, qkv: Tensor, packed: Packed) -> Tensor:
        return self.attend(qkv, packed)


@cache
def choose(device: torch.device, dtype: torch.dtype, heads: int, width: int) -> Kernel:
    """The first kernel that works for `heads` of `width`: each is tried on the device, against
    plain arithmetic.
    """
    for kernel in _candidates(device, dtype):
        problem = _problem(kernel, device, dtype, heads, width)
        if not problem:
            return kernel
        log.info("attention: not %s: %s", kernel.name, problem)
    raise RuntimeError(f"no attention kernel works on {device} in {dtype}")


def _candidates(device: torch.device, dtype: torch.dtype) -> Iterator[Kernel]:
    half = dtype != torch.float32
    if device.type == "cpu":
        if dtype == torch.bfloat16:
            # torch's fused kernel runs it at the speed of fp32; matrix products run it at its own
            yield Kernel("blocked", "products of cache-sized blocks", blocked)
        yield Kernel("", "torch SDPA", sdpa)
        return
    if half and torch.cuda.get_device_capability(device) >= (8, 0):
        yield from _variable_length()
    for backend, label in (
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.MATH, "math"),
    ):
        yield Kernel(
            label, f"torch SDPA ({label}), equal lengths together", partial(_sdpa_by, backend)
        )


def _variable_length() -> Iterator[Kernel]:
    """Kernels that take packed sequences as they are. All are FlashAttention, hence one label."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # torch before 2.10
        pass
    else:
        logging.getLogger("torch.nn.attention.varlen").setLevel(
            logging.WARNING
        )  # it would log every call
        # Splitting keys among blocks would depend on the batch. Where torch cannot be told, it
        # never splits.
        one: Callable[..., Any] = partial(varlen_attn, num_splits=1)
        yield Kernel("varlen", "torch varlen_attn, num_splits=1", partial(_varlen, one))
        yield Kernel("varlen", "torch varlen_attn", partial(_varlen, varlen_attn))
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]
    except Exception as error:  # an extension built for another torch fails in many ways
        log.debug("flash_attn: %s", error)
    else:
        yield Kernel("varlen", "flash_attn", partial(_varlen, flash_attn_varlen_func))


def _problem(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, heads: int, width: int
) -> str:
    """Why a kernel does not serve, in words; empty when it does."""
    lengths = (40, 3, 129)
    random = torch.Generator().manual_seed(1)
    total = sum(lengths) + 20
    qkv = torch.randn((total, 3, heads, width), generator=random).to(dtype)
    with torch.inference_mode():
        expected = sdpa(qkv.float(), pack(lengths, torch.device("cpu")))
        try:
            found = kernel(qkv.to(device), pack(lengths, device)).float().cpu()
        except (RuntimeError, NotImplementedError, TypeError, AssertionError) as error:
            if out_of_memory(error):  # says nothing about the kernel
                raise
            devices.synchronize(device)  # raises what it says on a device that is lost
            return f"{type(error).__name__}: {error}".splitlines()[0]
    worst = float(((found - expected).abs() / (1 + expected.abs())).max())
    return (
        ""
        if worst <= (1e-4 if dtype == torch.float32 else 0.02)
        else f"its result is off by {worst:.2g}"
    )


def pack(lengths: tuple[int, ...], device: torch.device) -> Packed:
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    return Packed(lengths, boundaries)


def sdpa(qkv: Tensor, packed: Packed) -> Tensor:
    """torch's scaled_dot_product_attention; neighbors of equal length share one call, so no mask
    is needed.
    """
    out = _room(qkv)
    start = 0
    for length, run in groupby(packed.lengths):
        count = len(list(run))
        stop = start + count * length
        query, key, value = (
            qkv[start:stop].view(count, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        )  # (n, H, L, d)
        result = F.scaled_dot_product_attention(query, key, value)
        out[start:stop] = result.transpose(1, 2).reshape(stop - start, -1)
        start = stop
    out[start:] = 0
    return out


def _sdpa_by(backend: SDPBackend, qkv: Tensor, packed: Packed) -> Tensor:
    # not torch's own choice: its FlashAttention splits keys by how many sequences share the call
    with sdpa_kernel(backend):
        return sdpa(qkv, packed)


def _varlen(function: Callable[..., Any], qkv: Tensor, packed: Packed) -> Tensor:
    """FlashAttention over variable lengths: the unused rows behind the last sequence belong to
    none.
    """
    query, key, value = qkv.unbind(1)  # (T, H, d), strided
    longest, used = max(packed.lengths), sum(packed.lengths)
    out: Tensor = function(
        query, key, value, packed.boundaries, packed.boundaries, longest, longest
    ).flatten(1)
    out[used:] = 0
    return out


def blocked(qkv: Tensor, packed: Packed) -> Tensor:
    """Matrix products and softmax over blocks of heads, or of one head's queries, whose scores stay
    in the cache.
    """
    out = _room(qkv)
    start = 0
    for length in packed.lengths:
        stop = start + length
        query, key, value = qkv[start:stop].permute(1, 2, 0, 3).contiguous()  # (H, L, d)
        query *= query.shape[-1] ** -0.5
        rows = max(1, SCORE_BYTES // (length * query.element_size()))
        heads = max(1, rows // length)
        result = torch.empty_like(query)
        for head in range(0, len(query), heads):
            group = slice(head, head + heads)
            for at in range(0, length, rows):
                scores = torch.bmm(query[group, at : at + rows], key[group].transpose(1, 2))
                result[group, at : at + rows] = torch.bmm(torch.softmax(scores, -1), value[group])
        out[start:stop].view(length, len(query), -1).copy_(result.transpose(0, 1))
        start = stop
    out[start:] = 0
    return out


def _room(qkv: Tensor) -> Tensor:
    return torch.empty((len(qkv), qkv[0, 0].numel()), dtype=qkv.dtype, device=qkv.device)
