"""Whether the letters of tokens can be right, by what holds for every sequence. It knows nothing of
tokenizers, which wrote them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def wrong_spans(
    stored: NDArray[np.floating[Any]],
    edges: NDArray[np.int64],
    kept: NDArray[np.int64],
    windows: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """For n sequences, whether their tokens fail to be all their letters.

    stored (r, 2) as `sequence_windows.stored_spans`; the rows of a sequence lie between two
    neighbors of edges (n + 1); kept (n,): letters that went through the model; windows (n,) as
    stored. Tokens begin with the first letter and end with the last. They follow each other without
    a gap; those of several windows may overlap or leave letters out, but go forward.
    """
    with np.errstate(invalid="ignore"):  # NaN becomes a number, and unlike itself below
        whole = stored.astype(np.int64)
    skipped, letters = whole.T
    starts = edges[:-1]
    forward = skipped + np.concatenate(([1], letters[:-1]))
    forward[starts] = 1 + skipped[starts]
    several = np.repeat(windows > 1, np.diff(edges))
    wrong = (whole != stored).any(axis=1) | (letters < 1) | (forward < 1)
    wrong |= ~several & (skipped != 0)
    wrong[starts] |= skipped[starts] != 0
    wrong[starts] |= np.add.reduceat(skipped + letters, starts) != kept
    found: NDArray[np.bool_] = np.logical_or.reduceat(wrong, starts)
    return found
