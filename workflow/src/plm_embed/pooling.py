"""From residue representations to what is stored. Only residues are pooled: no `<cls>`, no `<eos>`, no padding."""

import torch

from plm_embed.fingerprint import Pooling

DEFINITIONS: dict[Pooling, str] = {
    "mean": "arithmetic mean over the residues only; <cls>, <eos> and padding are left out",
    "bos": "representation of the <cls> token",
    "max": "element-wise maximum over the residues only; <cls>, <eos> and padding are left out",
    "per_residue": "one row per residue; <cls>, <eos> and padding are left out",
}


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
