"""Attention within each of several packed sequences by torch's own operations, and by functions for
variable lengths.

Of a CPU's kernels, `blocked` needs products of the dtype that are fast, `aligned` torch's fused
kernel.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plm_embed.kernels.packed import Distances, Packed

KEYS = 16
"""fp32 numbers in the largest vector of a CPU."""
SCORE_BYTES = 1 << 20
"""Scores alive at a time on a CPU: what its cache holds."""
MASK_BYTES = 1 << 28
"""Biases written out at a time on a GPU, whose kernels read them from memory."""
_FLASH = torch.ops.aten._flash_attention_forward
_UNSPLIT: dict[str, Any] = {
    argument.name: 1
    for argument in _FLASH.default._schema.arguments
    if argument.name == "num_splits"
}
"""Argument that keeps keys of a sequence in one block: splits would depend on the batch. Where
torch cannot be told, it never splits.
"""


def sdpa(qkv: Tensor, packed: Packed) -> Tensor:
    """torch's scaled_dot_product_attention, without a mask but for biases: on a GPU neighbors of
    equal length share one call.

    On a CPU each has its own: of heads of width 8, two threads give other bits to sequences that
    share one (torch 2.13, odd lengths from 9 to 31).
    """
    out = qkv.new_empty((len(qkv), qkv[0, 0].numel()))
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
    for first in range(0, length, rows):
        block = distances.windows(length)[:, first : first + rows]
        mask = query.new_empty((*block.shape[:2], aligned))[..., :length].copy_(block)
        parts.append(
            F.scaled_dot_product_attention(
                query[:, :, first : first + rows],
                key,
                value,
                attn_mask=mask.expand(len(query), *mask.shape),
                scale=distances.scale,
            )
        )
    return torch.cat(parts, 2).flip(2)


def sdpa_by(backend: SDPBackend, qkv: Tensor, packed: Packed) -> Tensor:
    # not torch's own choice: its FlashAttention splits keys by how many sequences share the call
    with sdpa_kernel(backend):
        return sdpa(qkv, packed)


def varlen(function: Callable[..., Any], qkv: Tensor, packed: Packed) -> Tensor:
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


def flash(*where: Any) -> Tensor:
    """torch's FlashAttention, called as `torch.nn.attention.varlen_attn` calls it.

    To import that takes 2.5 s of a processor, since it brings torch's compiler, and it may take
    cuDNN's attention in place of this one.
    """
    out: Tensor = _FLASH(*where, 0.0, False, return_debug_mask=False, **_UNSPLIT)[0]
    return out


def aligned(qkv: Tensor, packed: Packed) -> Tensor:
    """`sdpa` on a CPU, with masked keys that fill up the last vector: torch takes the scores of a
    vector that is not full one by one, a third of its time at 300 keys. The masked keys are the
    rows behind a sequence, which are cleared: hence the last sequence comes first.
    """
    out = qkv.new_empty((len(qkv), qkv[0, 0].numel()))
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
        result = F.scaled_dot_product_attention(query[:, :, :length], key, value, attn_mask=shown)
        out[start:stop] = result[0].transpose(0, 1).reshape(length, -1)
        stop = start
    return out


def blocked(qkv: Tensor, packed: Packed) -> Tensor:
    """Matrix products and softmax over blocks of heads, or of one head's queries, whose scores stay
    in the cache.
    """
    out = qkv.new_empty((len(qkv), qkv[0, 0].numel()))
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
            for first in range(0, length, rows):
                scores = torch.bmm(query[group, first : first + rows], key[group].transpose(1, 2))
                if windows is not None:
                    scores = scores.float().add_(windows[group, first : first + rows])
                weights = torch.softmax(scores, -1).to(value.dtype)
                result[group, first : first + rows] = torch.bmm(weights, value[group])
        if windows is not None:
            result = result.flip(1)
        out[start:stop].view(length, len(query), -1).copy_(result.transpose(0, 1))
        start = stop
    out[start:] = 0
    return out
