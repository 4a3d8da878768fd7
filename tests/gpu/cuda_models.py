"""Models with random weights on a CUDA device, and what goes through them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from plm_embed.kernels.devices import set_up
from plm_embed.models.engine import Engine
from plm_embed.models.families.esm import ESM2
from plm_embed.models.registry import Model
from plm_embed.sequences.residues import PROTEIN
from support import checkpoints
from support.packed import packed_batch

ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
}
"""Environment of processes that tests start: they find what this one finds."""

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
WIDE = Model("esm2_t3_wide", ESM2, layers=3, dim=640, heads=10)  # heads of 64, as in 650M and 3B


def random_sequence(length: int, seed: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list(PROTEIN.letters), length))


def engine_of(model: Model, device: torch.device, dtype: str) -> Engine:
    set_up(device, torch.get_num_threads(), dtype)  # type: ignore[arg-type]
    model = checkpoints.decided(model, token_dropout=True)
    return Engine(model, checkpoints.random_state(model, 4), device, dtype)  # type: ignore[arg-type]


def states(
    engine: Engine, sequences: list[str], layers: list[int]
) -> list[dict[int, torch.Tensor]]:
    batch = packed_batch(engine, sequences)
    hidden = engine.forward(batch, layers)
    cut = {layer: batch.split(found) for layer, found in hidden.items()}
    return [{layer: cut[layer][i] for layer in layers} for i in range(len(sequences))]


def half_types() -> Iterator[str]:
    yield "float16"
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False):
        yield "bfloat16"
