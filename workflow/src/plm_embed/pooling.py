"""From residue representations to what is stored. Only residues are pooled: no `<cls>`, no `<eos>`, no padding."""

import torch

from plm_embed.fingerprint import Pooling


def pool(pooling: Pooling, hidden: torch.Tensor) -> torch.Tensor:
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
