"""Biases by distance from integer arithmetic, so that no device can round one differently."""

import torch
from torch import Tensor


def t5_bias(weight: Tensor, farthest: int, length: int) -> Tensor:
    """(H, 2 length - 1) fp32: the bias of each head from distance -(length - 1) (key - query) on.

    `weight` (buckets, H) are T5's learned biases.
    """
    count = len(weight)
    near = torch.tensor([bucket(distance, count, farthest) for distance in range(farthest + 1)])
    distance = torch.arange(-length + 1, length)
    index = near[distance.abs().clamp(max=farthest)] + (distance > 0) * (count // 2)
    return weight.float().cpu()[index].T.contiguous()


def alibi_bias(heads: int, length: int) -> Tensor:
    """(H, 2 length - 1) fp32: minus ALiBi's slope of each head times the distance.

    The slopes are powers of 2^(-8 / heads), and for a number of heads that is no power of two those
    of the power below it, then every other one of the power above it (Press et al. 2022).
    """
    below = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (head + 1) / below) for head in range(below)]
    between = [2 ** (-4 * (head + 1) / below) for head in range(0, 2 * below, 2)]
    slopes = torch.tensor(first + between[: heads - below])
    return -slopes[:, None] * torch.arange(-length + 1, length).abs()


def bucket(distance: int, count: int, farthest: int) -> int:
    """T5's bucket of a distance at or before the query, in exact integers.

    The published rule is exact + floor(log(n / exact) / log(farthest / exact) * rest), where half
    of count // 2 buckets are exact (transformers, modeling_t5.py: _relative_position_bucket).
    """
    half = count // 2
    exact = half // 2
    if distance < exact:
        return distance
    rest, step = half - exact, 0
    # the largest step with exact * (farthest / exact) ** (step / rest) <= distance
    while step + 1 < rest and distance**rest * exact ** (step + 1) >= exact**rest * farthest ** (
        step + 1
    ):
        step += 1
    return exact + step
