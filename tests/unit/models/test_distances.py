"""Biases by distance, and encoders that no family has."""

import math
from dataclasses import replace

import pytest
import torch

from plm_embed.models import distances, reference
from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.engine import Engine
from plm_embed.models.families.esm import ESM2
from plm_embed.models.family import ALiBi, Encoder, Rotary
from plm_embed.models.registry import ARCHITECTURES, Model
from support.packed import packed_batch

CPU = torch.device("cpu")


def published_bucket(distance: int, count: int, farthest: int) -> int:
    """transformers' rule for a distance at or before the query, in double precision."""
    exact = count // 4
    if distance < exact:
        return distance
    step = math.log(distance / exact) / math.log(farthest / exact) * (count // 2 - exact)
    return min(exact + int(step + 1e-9), count // 2 - 1)


@pytest.mark.parametrize(("count", "last"), [(32, 91), (64, 113)], ids=["ProtT5", "Ankh"])
def test_buckets_are_the_published_ones(count: int, last: int) -> None:
    found = [distances.bucket(distance, count, 128) for distance in range(3000)]
    assert found == [published_bucket(distance, count, 128) for distance in range(3000)]
    assert found.index(count // 2 - 1) == last


def test_keys_behind_the_query_have_buckets_of_their_own() -> None:
    table = distances.t5_bias(torch.arange(32.0)[:, None], 128, 4)
    assert table.tolist() == [[3, 2, 1, 0, 17, 18, 19]]


def test_slopes_of_a_number_of_heads_that_is_no_power_of_two() -> None:
    powers = [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]
    assert distances.slopes(12) == [2**-power for power in powers]
    assert distances.slopes(8) == [2**-power for power in range(1, 9)]
    assert distances.alibi_bias(8, 3)[0].tolist() == [-1, -0.5, 0, -0.5, -1]


ENCODERS = {
    "slopes, gates and norms after the sums": Encoder(
        rows=33,
        positions=ALiBi(),
        token_types=True,
        embedding_norm="always",
        order="post",
        epsilon=1e-12,
        gated=True,
        up_bias=False,
    ),
    "RMS norms of q and k, biases, neighbors rotated, no final norm": Encoder(
        rows=33,
        positions=Rotary(neighbors=True),
        norm="rms",
        norm_bias=False,
        final_norm_bias=False,
        query_key_norm=True,
        final_norm=False,
    ),
    "rows of q and k with biases, halves rotated": Encoder(rows=33, positions=Rotary()),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_encoders_that_no_family_has(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(ESM2, name="mixed", architecture="mixed", encoder=encoder)
    monkeypatch.setitem(ARCHITECTURES, "mixed", family)
    model = Model("mixed", family, layers=2, dim=96, heads=6, ffn_dim=160)
    random = torch.Generator().manual_seed(1)
    tensors = {
        name: (1 + 0.2 * torch.randn(shape, generator=random))
        if "norm" in name and name.endswith("weight")
        else torch.randn(shape, generator=random) * (0.1 if len(shape) == 1 else shape[1] ** -0.5)
        for name, shape in tensor_shapes(model).items()
    }
    sequences = ["MKTAYIAKQRQISFVKSHFSRQ" * 12, "ACDEF", "M"]
    engine = Engine(model, tensors, CPU, "float32")
    batch = packed_batch(engine, sequences)
    expected = reference.all_states(model, tensors, sequences, range(3))
    for layer, states in engine.forward(batch, range(3)).items():
        for found, wanted in zip(batch.split(states), expected, strict=True):
            assert (found - wanted[layer]).norm() / wanted[layer].norm() < 2e-6
