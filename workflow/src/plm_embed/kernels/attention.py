"""Attention within each of several packed sequences, by the best kernel that a device has for a
dtype.

Every kernel here computes a sequence's rows by operations whose shapes and order depend on that
sequence alone, so its bits do not depend on its company. `math` is the exception: it serves where
torch has nothing better.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plm_embed.errors import out_of_memory
from plm_embed.kernels import devices
from plm_embed.kernels.packed import Distances, Packed, pack

log = logging.getLogger(__name__)
KEYS = 16
"""fp32 numbers in the largest vector of a CPU."""
SCORE_BYTES = 1 << 20
"""Scores alive at a time on a CPU: what its cache holds."""
MASK_BYTES = 1 << 28
"""Biases written out at a time on a GPU, whose kernels read them from memory."""


Attend = Callable[[Tensor, Packed], Tensor]
"""qkv (T, 3, H, d), which is used up, and the sequences in it -> (T, D), contiguous; zero in the
rows behind the last sequence.
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
def choose(
    device: torch.device, dtype: torch.dtype, heads: int, width: int, by_distance: bool = False
) -> Kernel:
    """The first kernel that works for `heads` of `width`: each is tried on the device, against
    plain arithmetic. `by_distance`: it has to add biases.
    """
    for kernel in _candidates(device, dtype, by_distance):
        problem = _problem(kernel, device, dtype, heads, width, by_distance)
        if not problem:
            return kernel
        log.warning("attention: not %s: %s", kernel.name, problem)
    raise RuntimeError(f"no attention kernel works on {device} in {dtype}")


def _candidates(
    device: torch.device, dtype: torch.dtype, by_distance: bool = False
) -> Iterator[Kernel]:
    half = dtype != torch.float32
    if device.type == "cpu":
        if dtype == torch.bfloat16 and not matrix_unit():
            # torch's fused kernel runs it at the speed of fp32; matrix products run it at its own
            yield Kernel("blocked", "products of cache-sized blocks", blocked)
        if half and not by_distance:
            yield Kernel("aligned", "torch SDPA, keys in whole vectors", aligned)
        else:
            yield Kernel("fused" if half else "", "torch SDPA", sdpa)
        return
    if half and torch.cuda.get_device_capability(device) >= (8, 0):
        # FlashAttention adds no biases
        yield from _by_distance() if by_distance else _variable_length()
    for backend, label in (
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.MATH, "math"),
    ):
        yield Kernel(
            label, f"torch SDPA ({label}), equal lengths together", partial(_sdpa_by, backend)
        )


def matrix_unit() -> bool:
    """Whether the processor has a unit for products of bfloat16 (AMX), which torch's fused kernel
    uses. An older torch does not tell; then products of blocks serve.
    """
    known: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return bool(known().get("amx_bf16"))


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


def _by_distance() -> Iterator[Kernel]:
    """The package's own kernel that adds biases, where there is Triton."""
    try:
        from plm_embed.kernels import triton_attention
    except Exception as error:  # no Triton, or one that does not fit this Python
        log.debug("Triton: %s", error)
        return
    yield Kernel("distances", "Triton, biases by distance", triton_attention.attend)


def _problem(  # noqa: PLR0917
    kernel: Kernel, device: torch.device, dtype: torch.dtype, heads: int, width: int,
    by_distance: bool = False,
) -> str:  # fmt: skip
    """Why a kernel does not serve, in words; empty when it does."""
    lengths = (40, 3, 129)
    random = torch.Generator().manual_seed(1)
    total = sum(lengths) + 20
    qkv = torch.randn((total, 3, heads, width), generator=random).to(dtype)
    table = torch.randn((heads, 2 * max(lengths) - 1), generator=random)

    def packed(device: torch.device) -> Packed:
        distances = Distances(table.to(device), width**-0.5) if by_distance else None
        return replace(pack(lengths, device), distances=distances)

    with torch.inference_mode():
        expected = sdpa(qkv.float(), packed(torch.device("cpu")))
        try:
            found = kernel(qkv.to(device), packed(device)).float().cpu()
        except Exception as error:  # Triton's compiler and launcher raise many kinds
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


def sdpa(qkv: Tensor, packed: Packed) -> Tensor:
    """torch's scaled_dot_product_attention, without a mask but for biases: on a GPU neighbors of
    equal length share one call.

    On a CPU each has its own: of heads of width 8, two threads give other bits to sequences that
    share one (torch 2.13, odd lengths from 9 to 31).
    """
    out = _room(qkv)
    start = 0
    runs = ((length, len(list(run))) for length, run in groupby(packed.lengths))
    for length, count in runs if qkv.is_cuda else ((length, 1) for length in packed.lengths):
        stop = start + count * length
        query, key, value = (
            qkv[start:stop].view(count, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        )  # (n, H, L, d)
        if packed.distances is None:
            result = F.scaled_dot_product_attention(query, key, value)
        else:
            result = _biased(query, key, value, packed.distances)
        out[start:stop] = result.transpose(1, 2).reshape(stop - start, -1)
        start = stop
    out[start:] = 0
    return out


def _biased(query: Tensor, key: Tensor, value: Tensor, distances: Distances) -> Tensor:
    """Attention of (n, H, L, d) with biases; on a GPU by blocks of queries, whose biases are
    written out.
    """
    heads, length = query.shape[1:3]
    query = query.flip(2)  # as the windows are ordered
    if not query.is_cuda:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=distances.windows(length)[None], scale=distances.scale
        ).flip(2)
    rows = max(1, MASK_BYTES // (heads * length * query.element_size()))
    aligned = -(-length // 16) * 16  # rows of the mask begin where the kernel can read them
    parts = []
    for at in range(0, length, rows):
        block = distances.windows(length)[:, at : at + rows]
        mask = query.new_empty((*block.shape[:2], aligned))[..., :length].copy_(block)
        parts.append(
            F.scaled_dot_product_attention(
                query[:, :, at : at + rows],
                key,
                value,
                attn_mask=mask.expand(len(query), *mask.shape),
                scale=distances.scale,
            )
        )
    return torch.cat(parts, 2).flip(2)


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


def aligned(qkv: Tensor, packed: Packed) -> Tensor:
    """`sdpa` on a CPU with masked keys up to whole vectors: scores that fill none torch takes one
    by one, a third of its time at 300 keys. The masked keys are the rows behind a sequence, which
    are cleared: hence the last sequence first.
    """
    out = _room(qkv)
    stop = sum(packed.lengths)
    out[stop:] = 0
    for length in reversed(packed.lengths):
        start, whole = stop - length, -(-length // KEYS) * KEYS
        part = qkv[start : start + whole]
        if len(part) < whole:
            part = F.pad(part, (0, 0, 0, 0, 0, 0, 0, whole - len(part)))
        part[length:] = 0
        query, key, value = part.permute(1, 2, 0, 3)[:, None]  # (1, H, whole, d)
        mask = part.new_zeros(whole)
        mask[length:] = -torch.inf
        shown = None if length == whole else mask.expand(1, 1, length, whole)
        found = F.scaled_dot_product_attention(query[:, :, :length], key, value, attn_mask=shown)
        out[start:stop] = found[0].transpose(0, 1).reshape(length, -1)
        stop = start
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
        windows = None
        if packed.distances is None:
            query *= query.shape[-1] ** -0.5
        else:
            query = query.flip(1).mul_(packed.distances.scale)
            windows = packed.distances.windows(length)
        rows = max(1, SCORE_BYTES // (length * query.element_size()))
        heads = max(1, rows // length)
        result = torch.empty_like(query)
        for head in range(0, len(query), heads):
            group = slice(head, head + heads)
            for at in range(0, length, rows):
                scores = torch.bmm(query[group, at : at + rows], key[group].transpose(1, 2))
                if windows is not None:
                    scores = scores.float().add_(windows[group, at : at + rows])
                weights = torch.softmax(scores, -1).to(value.dtype)
                result[group, at : at + rows] = torch.bmm(weights, value[group])
        if windows is not None:
            result = result.flip(1)
        out[start:stop].view(length, len(query), -1).copy_(result.transpose(0, 1))
        start = stop
    out[start:] = 0
    return out


def _room(qkv: Tensor) -> Tensor:
    return torch.empty((len(qkv), qkv[0, 0].numel()), dtype=qkv.dtype, device=qkv.device)
