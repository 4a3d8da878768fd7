"""Packed sequences for kernels and engines, and what attention within them is."""

from collections.abc import Sequence

import torch
from torch import Tensor

from plm_embed.kernels.attention import Packed
from plm_embed.models import engine as engines
from plm_embed.models.engine import Batch, Engine


def packed_batch(engine: Engine, sequences: Sequence[str]) -> Batch:
    """Tokenize and pack normalized sequences."""
    pieces = [engine.tokenize(sequence) for sequence in sequences]
    return engines.pack(pieces, engine.model.family, engine.rows)


def pack(lengths: tuple[int, ...], device: torch.device) -> Packed:
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    return Packed(lengths, boundaries)


def exact(qkv: Tensor, packed: Packed) -> Tensor:
    """Softmax(scale q k + bias) v of each sequence in float64; zeros behind the last one."""
    out = torch.zeros((len(qkv), qkv[0, 0].numel()), dtype=torch.float64)
    start, scale, bias = 0, qkv.shape[-1] ** -0.5, torch.zeros(())
    for length in packed.lengths:
        query, key, value = qkv[start : start + length].double().permute(1, 2, 0, 3)
        if packed.distances is not None:
            table, scale, at = packed.distances.table, packed.distances.scale, torch.arange(length)
            bias = table.double()[:, table.shape[1] // 2 + at[None] - at[:, None]]
        weights = torch.softmax(scale * query @ key.transpose(1, 2) + bias, -1)
        out[start : start + length] = (weights @ value).transpose(0, 1).reshape(length, -1)
        start += length
    return out
