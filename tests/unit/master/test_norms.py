"""What is said of all rows of a master, in little more memory than a number for each."""

import tracemalloc

import numpy as np
import pytest

from plm_embed.master import norms
from plm_embed.master.norms import distribution


@pytest.fixture
def found() -> np.ndarray:
    """Norms, with outliers, zeros and numbers that are not finite."""
    random = np.random.default_rng(0)
    values = np.exp(random.normal(2, 0.1, 50_000)).astype(np.float32)
    values[::301] *= random.uniform(3, 9, len(values[::301])).astype(np.float32)
    values[5:9000:1000] = [0, np.nan, np.inf] * 3
    return values


def test_norms_are_told_as_from_all_at_once(
    found: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "_AT_ONCE", 1000)
    valid = np.flatnonzero(np.isfinite(found) & (found > 0))
    logs = np.log(found[valid])
    z = (logs - np.median(logs)) / (1.4826 * np.median(np.abs(logs - np.median(logs))))
    far = np.flatnonzero(np.abs(z) > 6)
    worst = far[np.argsort(-np.abs(z[far]), kind="stable")][:100]
    told = distribution(found.copy(), np.full(len(found), b"key"))
    assert (told.rows, told.zero, told.outliers) == (len(valid), 3, len(far))
    assert len(far) > 100
    assert [(each.row, each.norm, each.z) for each in told.listed] == [
        (int(valid[at]), float(found[valid[at]]), round(float(z[at]), 1)) for at in worst
    ]
    assert (told.min, told.max) == (float(found[valid].min()), float(found[valid].max()))
    assert told.median == float(np.exp(np.median(logs)))


def test_norms_take_little_memory(found: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_AT_ONCE", 1000)
    keys = np.full(len(found), b"key")
    tracemalloc.start()
    distribution(found, keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(found)
