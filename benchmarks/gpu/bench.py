"""The device that is measured, and what is given to it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from plm_embed.models.model import Model
from plm_embed.models.packed_batch import TOKENS

ROUNDS = 5
LENGTHS = {
    "influenza, mean 500": (500, 0.3),
    "old estimate, mean 1000": (1000, 0.1),
    "UniRef, mean 300": (300, 0.55),
}
"""Mean and spread (of the logarithm) of the lengths."""


def draw(
    mean: float, spread: float, tokens: float, letters: str = "LAGVSERTIDPKQNFYMHWC"
) -> list[str]:
    """Random sequences of so many tokens and up to one sequence more, log-normal lengths."""
    random = np.random.default_rng(5)
    found: list[str] = []
    while tokens > 0:
        length = int(np.clip(random.lognormal(np.log(mean) - spread**2 / 2, spread), 20, 4 * mean))
        found.append("".join(random.choice(list(letters), length)))
        tokens -= length + 2
    return found


def flops_share(model: Model) -> float:
    """Tokens of a model that cost what one of 650M does."""
    return min(8.0, 33 * 1280**2 / (model.layers * model.dim**2))


@dataclass(frozen=True)
class Bench:
    """One device. tokens: how many the engine embeds per timed run, for 650M; others in
    proportion.
    """

    device: torch.device
    tokens: int

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def budget(self) -> int:
        return TOKENS[self.device.type]

    @property
    def modern(self) -> bool:
        return self.cuda and torch.cuda.get_device_capability(self.device) >= (8, 0)

    @property
    def half(self) -> Any:
        return "bfloat16" if self.modern or not self.cuda else "float16"

    def timed(self, call: Callable[[], Any]) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def matrix_rate(self, size: int) -> float:
        """FLOP/s of a square product of random numbers in half precision: the median of 5 times
        10.
        """
        dtype = getattr(torch, self.half)
        a, b = (torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=self.device, dtype=dtype)

        def ten() -> None:
            for _ in range(10):
                torch.mm(a, b, out=out)

        ten()
        return 20 * size**3 / statistics.median(self.timed(ten) for _ in range(5))
