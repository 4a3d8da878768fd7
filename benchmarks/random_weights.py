"""ESM-2 checkpoints of any size with random weights, where a measurement needs the work of a model
and not its answers.
"""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch

from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.registry import Model


def write_checkpoint(path: Path, model: Model) -> Path:
    """A file as fair-esm publishes them. Matrices keep the scale of what they are given, gains are
    1 and biases 0.
    """
    random = np.random.default_rng(1)
    state = {}
    for name, shape in tensor_shapes(model).items():
        values = np.full(shape, float("layer_norm" in name), np.float32)
        if len(shape) == 2:
            values = random.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
        elif name.endswith("bias"):
            values[:] = 0
        state[f"encoder.sentence_encoder.{name}"] = torch.from_numpy(values)
    arguments = Namespace(
        encoder_layers=model.layers,
        encoder_embed_dim=model.dim,
        encoder_attention_heads=model.heads,
        token_dropout=True,
    )
    torch.save({"cfg": {"model": arguments}, "model": state}, path)
    return path
