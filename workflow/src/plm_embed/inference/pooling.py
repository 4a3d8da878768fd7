"""From residue representations to what is stored. Only residues are pooled: no `<cls>`, no `<eos>`, no padding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from plm_embed.fingerprint import Pooling


def pool(pooling: Pooling, hidden: Tensor) -> Tensor:
    """Reduce one sequence's representations in fp32.

    `hidden` is (L + 2, D): `<cls>`, L residues, `<eos>`. Returns (D,), or (L, D) for `per_residue`.
    """
    hidden = hidden.float()
    if pooling == "bos":
        return hidden[0]
    residues = hidden[1:-1]
    if pooling == "mean":
        return residues.mean(dim=0)
    if pooling == "max":
        return residues.amax(dim=0)
    return residues


def pool_batch(pooling: Pooling, hidden: Tensor, lengths: Sequence[int], segments: Tensor) -> Tensor:
    """All sequences of a packed batch by the way that is fast on their device; see `pool_packed`."""
    if hidden.is_cuda:
        return pool_packed(pooling, hidden, lengths, segments)
    pooled = [pool(pooling, states) for states in torch.split(hidden[: sum(lengths)], list(lengths))]
    return torch.cat([each.view(-1, each.shape[-1]) for each in pooled])


def pool_packed(pooling: Pooling, hidden: Tensor, lengths: Sequence[int], segments: Tensor) -> Tensor:
    """Reduce all sequences of a packed batch where they lie: a few operations, however many sequences there are.

    `hidden` (T, D) fp32; `lengths` counts `<cls>` and `<eos>`; `segments` (3 n,) int64 on the device of `hidden`: of
    each sequence 1, L and 1. Returns (n, D), or (sum of L, D) for `per_residue`. Each sum runs along one sequence in
    its order, so it does not depend on the batch.
    """
    hidden = hidden[: sum(lengths)]
    if pooling == "per_residue":
        return torch.cat([states[1:-1] for states in torch.split(hidden, list(lengths))])
    if pooling == "bos":
        return hidden[segments.cumsum(0)[::3] - 1]
    # unsafe: the lengths are right, and looking at them would make the CPU wait for the device
    reduced: Tensor = torch.segment_reduce(hidden, pooling, lengths=segments, axis=0, unsafe=True)
    return reduced[1::3]
