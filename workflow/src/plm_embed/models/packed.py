"""Packed sequences: what every engine takes, and the sizes of its batches."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype

ROWS = {"cpu": 256, "cuda": 16384}
"""Rows of one matrix product. Fixed, because a library may choose another summation order for another shape."""

TOKENS = {"cpu": 2048, "cuda": 32768}
"""Largest token budget of a batch when none is asked for; a multiple of `ROWS`."""

DTYPES: dict[ComputeDtype, torch.dtype] = {
    "float32": torch.float32,
    "tfloat32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Batch:
    """Packed sequences: `tokens`, `positions` (T,) int32, T a multiple of `ROWS`.

    `lengths` count `<cls>` and `<eos>` too; `boundaries` (n + 1,) int32 are their sums from 0 on, `segments` (3 n,)
    int64 are 1, L and 1 of each sequence.
    """

    tokens: Tensor
    positions: Tensor
    boundaries: Tensor
    segments: Tensor
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> "Batch":
        """The same on a device. Copies from pinned memory are queued; nobody waits for them."""
        parts = ("tokens", "positions", "boundaries", "segments")
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in parts})
