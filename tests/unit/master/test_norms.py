"""Norms of all rows of a master, in little memory."""

import tracemalloc

import numpy as np
import pytest

from plm_embed.master.norms import distribution


@pytest.fixture
def values() -> np.ndarray:
    """Norms, with outliers, zeros and numbers that are not finite."""
    random = np.random.default_rng(0)
    drawn = np.exp(random.normal(2, 0.1, 50_000)).astype(np.float32)
    drawn[::301] *= random.uniform(3, 9, len(drawn[::301])).astype(np.float32)
    drawn[5:9000:1000] = [0, np.nan, np.inf] * 3
    return drawn


def test_norms_are_told_as_from_their_logarithms(values: np.ndarray) -> None:
    valid = np.flatnonzero(np.isfinite(values) & (values > 0))
    logs = np.log(values[valid])
    z = (logs - np.median(logs)) / (1.4826 * np.median(np.abs(logs - np.median(logs))))
    far = np.flatnonzero(np.abs(z) > 6)
    worst = far[np.argsort(-np.abs(z[far]), kind="stable")][:100]
    told = distribution(values.copy(), np.full(len(values), b"key"))
    assert (told.rows, told.zero, told.outliers) == (len(valid), 3, len(far))
    assert len(far) > 100
    assert [(each.row, each.norm, each.z) for each in told.listed] == [
        (int(valid[at]), float(values[valid[at]]), round(float(z[at]), 1)) for at in worst
    ]
    assert (told.min, told.max) == (float(values[valid].min()), float(values[valid].max()))
    assert told.median == float(np.exp(np.median(logs)))


def test_norms_take_little_memory(values: np.ndarray) -> None:
    keys = np.full(len(values), b"key")
    tracemalloc.start()
    distribution(values, keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(values)


def test_norms_of_near_equal_sequences_are_usual() -> None:
    close = np.full(1000, 5, np.float32)
    close[:400:2], close[1], close[3] = 5.001, 5.5, 8
    listed = distribution(close, np.full(len(close), b"key")).listed
    assert [outlier.row for outlier in listed] == [3]
