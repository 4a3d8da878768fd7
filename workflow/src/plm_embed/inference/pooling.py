"""Pooling of representations. The batch says which rows are special tokens'."""

from itertools import repeat

import torch
from torch import Tensor

from plm_embed.fingerprint import MATRICES, Pooling
from plm_embed.models.engine import Batch

_SEGMENTS: dict[Pooling, slice | list[int]] = {
    "mean": slice(1, 4, 2),
    "max": slice(1, 4, 2),
    "mean_special": [0, 1, 3, 4],
    "mean_chain1": slice(1, 2),
    "mean_chain2": slice(3, 4),
}
"""Segments of a pair of chains, as in `Batch`, that a pooling covers."""


def pool(
    pooling: Pooling,
    hidden: Tensor,
    residues: tuple[int, int],
    linker: tuple[int, int] | None = None,
) -> Tensor:
    """Reduce the representations (tokens, D) of one sequence in fp32.

    `residues`: the first row that is no special token's, and one past the last; `linker`: the same
    of the linker of a pair of chains, which is left out first, so that `residues` count without it.
    Returns (D,), or (L, D) for `per_residue` and `per_token`.
    """
    hidden, (first, stop) = hidden.float(), residues
    if pooling == "bos":
        return hidden[0]
    if linker:
        hidden = torch.cat((hidden[: linker[0]], hidden[linker[1] :]))
        first = linker[0] if pooling == "mean_chain2" else first
        stop = linker[0] if pooling == "mean_chain1" else stop
    rows = hidden if pooling == "mean_special" else hidden[first:stop]
    if pooling in MATRICES:
        return rows
    return rows.amax(dim=0) if pooling == "max" else rows.mean(dim=0)


def pool_batch(pooling: Pooling, hidden: Tensor, batch: Batch) -> Tensor:
    """Reduce all sequences of a packed batch (T, D), as is fast on its device. Returns (n, D), or
    (sum of L, D) for `per_residue` and `per_token`.
    """
    if hidden.is_cuda and pooling not in MATRICES:
        return pool_packed(pooling, hidden, batch)
    pieces = zip(batch.split(hidden), batch.residues, batch.linkers or repeat(None), strict=False)
    pooled = [pool(pooling, *piece) for piece in pieces]
    return torch.cat([rows.view(-1, rows.shape[-1]) for rows in pooled])


def pool_packed(pooling: Pooling, hidden: Tensor, batch: Batch) -> Tensor:
    """Reduce each sequence to a vector where they lie, in a few operations whatever their number;
    `hidden` is fp32, on the device of the batch.

    Each sum runs along one sequence or chain in its order, so it does not depend on the batch.
    """
    if pooling == "bos":
        return hidden[batch.boundaries[:-1].long()]
    # unsafe: the lengths are right, and looking at them would make the CPU wait for the device
    rows = hidden[: sum(batch.lengths)]
    reduced: Tensor
    if batch.linkers:
        counts, how = batch.segments.view(-1, 5), "max" if pooling == "max" else "sum"
        reduced = torch.segment_reduce(rows, how, lengths=batch.segments, axis=0, unsafe=True)
        parts = reduced.view(*counts.shape, -1)[:, _SEGMENTS[pooling]]
        if pooling == "max":
            return parts.amax(dim=1)
        return parts.sum(dim=1) / counts[:, _SEGMENTS[pooling]].sum(dim=1, keepdim=True)
    if pooling == "mean_special":
        return torch.segment_reduce(
            rows, "mean", lengths=batch.boundaries.diff().long(), axis=0, unsafe=True
        )
    reduced = torch.segment_reduce(rows, pooling, lengths=batch.segments, axis=0, unsafe=True)
    return reduced[1::3]
