"""Places of packed sequences for kernels."""

import torch

from plm_embed.kernels.packed import Packed


def pack(lengths: tuple[int, ...], device: torch.device) -> Packed:
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    return Packed(lengths, boundaries)
