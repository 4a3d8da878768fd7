"""Packed sequences: what the engine takes, and the sizes of its batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from plm_embed.fingerprint import ComputeDtype
from plm_embed.models.family import Family
from plm_embed.models.tokens import Ids

ROWS = {"cpu": 256, "cuda": 16384}
"""Rows of one matrix product. Fixed, because a library may choose another summation order for
another shape.
"""

LEAST_ROWS = {"cpu": 256, "cuda": 1024}
"""Rows that products shrink to where memory is short: with fewer, the last bits may differ."""

TOKENS = {"cpu": 2048, "cuda": 32768}
"""Largest token budget of a batch when none is asked for; a multiple of `ROWS`."""

DTYPES: dict[ComputeDtype, torch.dtype] = {
    "float32": torch.float32,
    "tfloat32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}
"""Dtype, under int8, of all but the inputs and weights of products."""


@dataclass(frozen=True)
class Batch:
    """Packed sequences: `tokens`, `positions` (T,) int32, T a multiple of `ROWS`.

    `lengths` count special tokens too; `boundaries` (n + 1,) int32 are their sums from 0 on,
    `segments` (3 n,) int64 are the tokens of each sequence before, among and after its residues; of
    pairs of chains (5 n,): before, of the first, of the linker, of the second, and after.
    """

    tokens: Tensor
    positions: Tensor
    boundaries: Tensor
    segments: Tensor
    lengths: tuple[int, ...]
    residues: tuple[tuple[int, int], ...]
    """Rows of each sequence's own tokens, which are no special ones, counted from its first: from,
    and one past the last. In a pair of chains they count without the linker.
    """
    linkers: tuple[tuple[int, int], ...] = ()
    """Rows of the linker in each pair of chains, likewise; none where there are no pairs."""
    masked: Tensor | None = None
    """(n,) int64, the row of the one token of each sequence that is masked, if they are."""

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device. Copies from pinned memory are queued, not waited for."""
        parts = ("tokens", "positions", "boundaries", "segments", "masked")
        return replace(
            self,
            **{
                name: part.to(device, non_blocking=True)
                for name in parts
                if (part := getattr(self, name)) is not None
            },
        )

    def split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Cut (T, ...) into one (tokens, ...) view per sequence; what lies behind them is left
        out.
        """
        return torch.split(hidden[: sum(self.lengths)], list(self.lengths))


def pack(
    pieces: Sequence[Ids],
    family: Family,
    rows: int,
    *,
    pinned: bool = False,
    masked: Sequence[int] | None = None,
    linkers: Sequence[tuple[int, int]] = (),
) -> Batch:
    """Lay the tokens of sequences one after another in the CPU's memory, in this order.

    Zeros stand behind them up to whole slices of `rows`. `masked`: the residue of each that is
    replaced by the token <mask>; `linkers`: of pairs of chains, as in `Batch`. Pinned memory is
    copied to a device without waiting.
    """
    lengths = tuple(len(piece) for piece in pieces)
    ends = np.cumsum((0, *lengths), dtype=np.int32)
    total = -(-int(ends[-1]) // rows) * rows
    tokens = np.zeros(total, dtype=np.int32)
    positions = np.zeros(total, dtype=np.int32)
    for piece, start in zip(pieces, ends.tolist(), strict=False):
        tokens[start : start + len(piece)] = piece
        positions[start : start + len(piece)] = np.arange(len(piece))
    residues, segments = [], []
    for length, (low, high) in zip(lengths, linkers or [(0, 0)] * len(lengths), strict=True):
        first, stop = family.residues(length - (high - low))
        residues.append((first, stop))
        after = length - (high - low) - stop
        if linkers:
            segments += [first, low - first, high - low, stop - low, after]
        else:
            segments += [first, stop - first, after]
    parts = {"tokens": tokens, "positions": positions, "boundaries": ends}
    parts["segments"] = np.array(segments, dtype=np.int64)
    if masked is not None and family.head:
        firsts = np.array([first for first, _ in residues], dtype=np.int64)
        parts["masked"] = places = ends[:-1] + firsts + masked
        tokens[places] = family.head.mask
    tensors = {name: torch.from_numpy(array) for name, array in parts.items()}
    if pinned:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return Batch(**tensors, lengths=lengths, residues=tuple(residues), linkers=tuple(linkers))
