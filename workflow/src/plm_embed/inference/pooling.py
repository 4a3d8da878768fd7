"""Pooling of representations. The batch says which rows are special tokens'."""

from itertools import repeat

import torch
from torch import Tensor

from plm_embed.fingerprint import Pooling
from plm_embed.models.packed_batch import Batch


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
    hidden = hidden.float()
    if linker:
        hidden = torch.cat((hidden[: linker[0]], hidden[linker[1] :]))
        if pooling == "mean_chain1":
            return hidden[residues[0] : linker[0]].mean(dim=0)
        if pooling == "mean_chain2":
            return hidden[linker[0] : residues[1]].mean(dim=0)
    if pooling == "bos":
        return hidden[0]
    if pooling == "mean_special":
        return hidden.mean(dim=0)
    rows = hidden[slice(*residues)]
    if pooling == "mean":
        return rows.mean(dim=0)
    if pooling == "max":
        return rows.amax(dim=0)
    return rows


def pool_batch(pooling: Pooling, hidden: Tensor, batch: Batch) -> Tensor:
    """Reduce all sequences of a packed batch (T, D), as is fast on its device. Returns (n, D), or
    (sum of L, D) for `per_residue` and `per_token`.
    """
    if hidden.is_cuda and not batch.linkers:
        return pool_packed(pooling, hidden, batch)
    pieces = zip(batch.split(hidden), batch.residues, batch.linkers or repeat(None), strict=False)
    pooled = [pool(pooling, *piece) for piece in pieces]
    return torch.cat([rows.view(-1, rows.shape[-1]) for rows in pooled])


def pool_packed(pooling: Pooling, hidden: Tensor, batch: Batch) -> Tensor:
    """Do the same where the sequences lie, in a few operations whatever their number; `hidden` is
    fp32, on the device of the batch, which has no pairs of chains.

    Each sum runs along one sequence in its order, so it does not depend on the batch.
    """
    if pooling in ("per_residue", "per_token"):
        pieces = zip(batch.split(hidden), batch.residues, strict=True)
        return torch.cat([states[slice(*residues)] for states, residues in pieces])
    if pooling == "bos":
        return hidden[batch.boundaries[:-1].long()]
    # unsafe: the lengths are right, and looking at them would make the CPU wait for the device
    rows = hidden[: sum(batch.lengths)]
    if pooling == "mean_special":
        return torch.segment_reduce(
            rows, "mean", lengths=batch.boundaries.diff().long(), axis=0, unsafe=True
        )
    reduced: Tensor = torch.segment_reduce(
        rows, pooling, lengths=batch.segments, axis=0, unsafe=True
    )
    return reduced[1::3]
