import numpy as np
import pytest
import torch

from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.inference.pooling import pool, pool_batch, pool_packed
from plm_embed.models.packed_batch import pack

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
    batch = pack([np.zeros(4, np.uint8), np.zeros(3, np.uint8)], [(1, 3), (1, 2)], 8, pinned=False)
    both = torch.cat((HIDDEN, HIDDEN))
    for found in (pool_batch, pool_packed):
        rows = found(pooling, both, batch).tolist()  # type: ignore[arg-type]
        assert rows[: 1 + (pooling == "per_residue")] == (
            expected if pooling == "per_residue" else [expected]
        )


def test_half_precision_is_pooled_in_fp32() -> None:
    hidden = torch.full((4098, 1), 1.001, dtype=torch.bfloat16)
    pooled = pool("mean", hidden, (1, 4097))
    assert pooled.dtype == torch.float32
    assert abs(pooled.item() - float(hidden[0, 0])) < 1e-6
