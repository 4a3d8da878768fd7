import numpy as np
import pytest
import torch

from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.inference.pooling import pool, pool_batch, pool_packed
from plm_embed.models.engine import pack
from plm_embed.models.families.esm import ESM2

HIDDEN = torch.tensor([[100.0, -100.0], [1.0, 5.0], [3.0, -7.0], [900.0, 900.0]])


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [2.0, -1.0]),
        ("mean_special", [251.0, 199.5]),
        ("max", [3.0, 5.0]),
        ("bos", [100.0, -100.0]),
        ("per_residue", [[1.0, 5.0], [3.0, -7.0]]),
    ],
)
def test_what_is_pooled(pooling: str, expected: list[float]) -> None:
    assert pool(pooling, HIDDEN, (1, 3)).tolist() == expected  # type: ignore[arg-type]
    assert pooling in POOLING_DEFINITIONS
    batch = pack([np.zeros(4, np.uint16), np.zeros(3, np.uint16)], ESM2, 8)
    both = torch.cat((HIDDEN, HIDDEN))
    rows = pool_batch(pooling, both, batch)  # type: ignore[arg-type]
    if pooling == "per_residue":
        assert rows[:2].tolist() == expected
    else:
        assert rows[0].tolist() == expected
        assert torch.equal(pool_packed(pooling, both, batch), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [[5.0, 0.0]]),
        ("mean_special", [[203.0, 160.0]]),
        ("max", [[12.0, 5.0]]),
        ("bos", [[100.0, -100.0]]),
        ("mean_chain1", [[1.5, 4.0]]),
        ("mean_chain2", [[12.0, -8.0]]),
        ("per_residue", [[1.0, 5.0], [2.0, 3.0], [12.0, -8.0]]),
    ],
)
def test_the_linker_of_a_pair_is_in_no_vector(pooling: str, expected: list[list[float]]) -> None:
    linker = torch.full((2, 2), torch.inf)
    chains = torch.tensor([[1.0, 5.0], [2.0, 3.0]]), torch.tensor([[12.0, -8.0]])
    pair = torch.cat((HIDDEN[:1], chains[0], linker, chains[1], HIDDEN[3:]))
    assert pool(pooling, pair, (1, 4), (3, 5)).view(-1, 2).tolist() == expected  # type: ignore[arg-type]
    ids = [np.zeros(len(pair), np.uint16)] * 2
    batch = pack(ids, ESM2, 8, linkers=[(3, 5)] * 2)
    assert batch.segments.tolist() == [1, 2, 2, 1, 1] * 2
    for pool_all in (pool_batch, pool_packed)[: 1 + (pooling != "per_residue")]:
        assert pool_all(pooling, torch.cat((pair, pair)), batch).tolist() == 2 * expected  # type: ignore[arg-type]


def test_half_precision_is_pooled_in_fp32() -> None:
    hidden = torch.full((4098, 1), 1.001, dtype=torch.bfloat16)
    pooled = pool("mean", hidden, (1, 4097))
    assert pooled.dtype == torch.float32
    assert abs(pooled.item() - float(hidden[0, 0])) < 1e-6
