"""What happens to sequences longer than the limit: which pieces are embedded, and how pieces become
one vector.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import LongSequences, Pooling

Span = tuple[int, int]
"""First residue and one past the last, 0-based."""


def spans(length: int, policy: LongSequences) -> list[Span]:
    """The pieces of a sequence of `length` residues that go through the model; empty when it gets
    no vector.

    Windows start every `max_residues - overlap` residues; the last one ends at the last residue and
    keeps its full size, so that no window is a short tail and only its overlap is larger.
    """
    limit = policy.max_residues
    if policy.policy == "whole" or limit == 0 or length <= limit:
        return [(0, length)]
    if policy.policy == "crop":
        return [(0, limit)]
    if policy.policy == "skip":
        return []
    starts = [*range(0, length - limit, limit - policy.overlap), length - limit]
    return [(start, start + limit) for start in starts]


def window_count(length: int, policy: LongSequences) -> int:
    """How a sequence was embedded, as stored: 1 in one piece, k > 1 in k windows, 0 cropped."""
    pieces = spans(length, policy)
    return 0 if pieces and pieces[-1][1] < length else len(pieces)


def window_counts(lengths: NDArray[np.int32], policy: LongSequences) -> NDArray[np.int32]:
    """`window_count` of each length (n,)."""
    distinct, at = np.unique(lengths, return_inverse=True)
    counts = np.array(
        [window_count(length, policy) for length in distinct.tolist()], dtype=np.int32
    )
    return counts[at]


def combine(
    pooling: Pooling, pieces: Sequence[NDArray[np.float32]], where: Sequence[Span]
) -> NDArray[np.float32]:
    """One vector (D,), or one matrix (L, D) for `per_residue`, from the pieces of one sequence.

    mean, mean_special and bos: average weighted by the pieces' lengths; max: element-wise maximum;
    per_residue: every residue is taken from the window in which it lies farther from an edge.
    """
    if len(pieces) == 1:
        return pieces[0]
    if pooling == "max":
        largest: NDArray[np.float32] = np.stack(pieces).max(axis=0)
        return largest
    if pooling == "per_residue":
        cuts = [(after[0] + before[1]) // 2 for before, after in pairwise(where)]
        edges = [where[0][0], *cuts, where[-1][1]]
        return np.concatenate(
            [
                piece[low - span[0] : high - span[0]]
                for piece, span, low, high in zip(pieces, where, edges, edges[1:], strict=False)
            ]
        )
    weights = np.array([stop - start for start, stop in where], dtype=np.float32)
    return np.average(np.stack(pieces), axis=0, weights=weights).astype(np.float32)


def stored_residues(
    lengths: NDArray[np.signedinteger[Any]], policy: LongSequences
) -> NDArray[np.int64]:
    """Rows that a sequence of each length (n,) has in per-residue datasets: one per residue that
    goes through the model, none when the sequence is skipped.
    """
    rows = lengths.astype(np.int64)
    if policy.max_residues and policy.policy in ("crop", "skip"):
        kept = policy.max_residues if policy.policy == "crop" else 0
        rows[rows > policy.max_residues] = kept
    return rows
