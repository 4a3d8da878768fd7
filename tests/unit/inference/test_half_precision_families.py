"""Weights in half precision, of every family."""

import pytest
import torch

from plm_embed.fingerprint import ComputeDtype
from plm_embed.models.engine import Engine
from support.checkpoints import decided, read
from support.families import TINY, golden, source
from support.packed import packed_batch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TINY)
def test_weights_in_half_precision_are_rounded_once(
    name: str, stored: torch.dtype, dtype: ComputeDtype
) -> None:
    """They give the bits of the same numbers in float32."""
    checkpoint = read(source(name), TINY[name])
    model = decided(TINY[name], token_dropout=checkpoint.token_dropout)
    tensors = dict(checkpoint.tensors)
    floats = {key: tensor for key, tensor in tensors.items() if tensor.is_floating_point()}
    half = {key: tensor.to(stored) for key, tensor in floats.items()}
    states = []
    for change in (half, {key: tensor.float() for key, tensor in half.items()}):
        engine = Engine(model, tensors | change, torch.device("cpu"), dtype)
        batch = packed_batch(engine, golden(name).sequences[:3])
        states.append(engine.forward(batch, [model.layers])[model.layers])
    assert torch.equal(*states)
