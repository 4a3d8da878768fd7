"""Letters of tokens without a tokenizer, and norms of all rows of a master in little memory."""

import tracemalloc

import numpy as np
import pytest

from plm_embed.master.validate import distribution, wrong_spans

# three sequences, as stored: letters between the token before and this one, and letters of it
WHOLE = [(0, 5), (0, 1), (0, 6)]  # of 12 letters in one piece
# of 15 letters; those of two windows overlap
WINDOWS = [(0, 6), (-2, 6), (1, 4)]
CROPPED = [(0, 6), (0, 4)]  # the first 10 of more
STORED = np.array(WHOLE + WINDOWS + CROPPED, dtype=np.float16)


@pytest.mark.parametrize(
    ("row", "stored", "sequence"),
    [
        (0, (1, 4), 0),  # does not begin with the first letter
        (3, (1, 5), 1),
        (1, (1, 1), 0),  # a gap in one piece
        (1, (-1, 1), 0),
        (6, (0, 5), 2),  # more letters than there are
        (7, (0, 3), 2),  # fewer
        (1, (0, 0), 0),  # a token of nothing
        (4, (-6, 10), 1),  # does not go forward, though it ends well
        (1, (0, 1.5), 0),
        (5, (np.nan, 4), 1),
        (0, (0, 5), None),  # as it was
    ],
)
def test_tokens_are_all_letters_in_order(
    row: int, stored: tuple[float, float], sequence: int | None
) -> None:
    changed, counts, letters = STORED.copy(), np.array([3, 3, 2]), np.array([12, 15, 10])
    changed[row] = stored
    wrong = wrong_spans(changed, counts, letters, np.array([1, 2, 0], np.int32))
    assert wrong.tolist() == [number == sequence for number in range(3)]


@pytest.fixture
def values() -> np.ndarray:
    """Norms, with outliers, zeros and numbers that are not finite."""
    random = np.random.default_rng(0)
    drawn = np.exp(random.normal(2, 0.1, 50_000)).astype(np.float32)
    drawn[::301] *= random.uniform(3, 9, len(drawn[::301])).astype(np.float32)
    drawn[5:9000:1000] = [0, np.nan, np.inf] * 3
    return drawn


def test_norms_are_described_by_their_logarithms_in_little_memory(values: np.ndarray) -> None:
    keys, copy = np.full(len(values), b"key"), values.copy()
    tracemalloc.start()
    norms = distribution(copy, keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(values)
    known = np.flatnonzero(np.isfinite(values))
    logs = np.log(np.maximum(values[known], np.finfo(np.float32).tiny))
    z = (logs - np.median(logs)) / (1.4826 * np.median(np.abs(logs - np.median(logs))))
    far = np.flatnonzero(np.abs(z) > 6)
    farthest = far[np.argsort(-np.abs(z[far]), kind="stable")][:20]
    assert (norms.rows, norms.outliers) == (len(known), len(far)) and len(far) > 100
    assert [(outlier.row, outlier.norm, outlier.z) for outlier in norms.listed] == [
        (int(known[at]), float(values[known[at]]), round(float(z[at]), 1)) for at in farthest
    ]
    assert [outlier.norm for outlier in norms.listed[:3]] == [0, 0, 0]
    assert (norms.min, norms.max) == (0, float(values[known].max()))
    assert norms.median == float(np.exp(np.median(logs)))


def test_norms_of_near_equal_sequences_are_usual() -> None:
    close = np.full(1000, 5, np.float32)
    close[:400:2], close[1], close[3] = 5.001, 5.5, 8
    listed = distribution(close, np.full(len(close), b"key")).listed
    assert [outlier.row for outlier in listed] == [3]
