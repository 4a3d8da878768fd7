"""Windows of sequences that are longer than the limit: the pieces that are embedded, and how they
become one vector.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import (
    SPANS,
    TOKEN_SCORES,
    Fingerprint,
    LongSequences,
    Pooling,
    representation,
)

_EXACT = 256
"""The last of the whole numbers that bfloat16 holds without a gap."""
Span = tuple[int, int]
"""First residue and one past the last, 0-based."""


def spans(length: int, policy: LongSequences) -> list[Span]:
    """Return the pieces of a sequence of `length` residues that go through the model; none when it
    gets no vector.

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


def window_counts(lengths: NDArray[np.int32], policy: LongSequences) -> NDArray[np.int32]:
    """Return how sequences of these lengths (n,) are embedded, as stored: 1 in one piece, k > 1 in
    k windows, 0 cropped or not at all.
    """
    counts = np.ones(len(lengths), dtype=np.int32)
    if policy.policy != "whole" and policy.max_residues:
        over = lengths - policy.max_residues
        windows = 1 - (-over // (policy.max_residues - policy.overlap))
        counts[over > 0] = windows[over > 0] if policy.policy == "window" else 0
    return counts


def too_long(lengths: NDArray[np.int32], policy: LongSequences) -> NDArray[np.bool_]:
    """Mark the sequences that the policy for long sequences gives no vector."""
    none: NDArray[np.bool_] = window_counts(lengths, policy) == 0
    return none & (policy.policy == "skip")


def whole(
    fingerprint: Fingerprint,
    pieces: Sequence[Mapping[str, NDArray[np.float32]]],
    where: Sequence[Span],
) -> dict[str, NDArray[np.float32]]:
    """Join the vectors of a sequence, by representation, from those of its pieces; and scores (1,)
    by name, where the pieces have TOKEN_SCORES.
    """
    scores: dict[str, NDArray[np.float32]] = {}
    if fingerprint.scores:
        parts = [piece[TOKEN_SCORES] for piece in pieces]
        means = combine("per_residue", parts, where).mean(axis=0, dtype=np.float64)  # (2,)
        kinds = zip(("log_likelihood", "entropy"), means.astype(np.float32), strict=True)
        scores = {name: mean[None] for name, mean in kinds if name in fingerprint.scores}
    if len(pieces) == 1:
        return {name: pieces[0][name] for name in fingerprint.representations} | scores
    joined = {
        (name := representation(pooling, layer)): combine(
            pooling, [piece[name] for piece in pieces], where
        )
        for pooling in fingerprint.pooling
        if pooling != "per_token"
        for layer in fingerprint.layers
    }
    if "per_token" in fingerprint.pooling:
        rows, joined_spans = shared_tokens([piece[SPANS] for piece in pieces], where)
        for layer in fingerprint.layers:
            name = representation("per_token", layer)
            parts = [piece[name][part] for piece, part in zip(pieces, rows, strict=True)]
            joined[name] = np.concatenate(parts)
        joined[SPANS] = joined_spans
    return joined | scores


def stored_spans(
    first: NDArray[np.integer[Any]], stop: NDArray[np.integer[Any]]
) -> NDArray[np.float32]:
    """Return the letters of tokens, (T,) each, as they are stored, (T, 2): how many letters lie
    between the token before and this one (of windows that overlap fewer than none), and how many it
    has.

    These numbers are small, so that every storage type holds them. ValueError for a token of more
    than 256 letters, which bfloat16 would round.
    """
    skipped = first - np.concatenate(([0], stop[:-1]))
    numbers = np.stack([skipped, stop - first], axis=1)
    if np.abs(numbers).max(initial=0) > _EXACT:
        raise ValueError(f"a token has more than {_EXACT} letters")
    return numbers.astype(np.float32)


def span_ends(stored: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return the spans that `stored_spans` made its numbers of: the first letter of each token, and
    one past the last, (T, 2).
    """
    steps = stored.astype(np.int64)
    stop = steps.sum(axis=1).cumsum()
    return np.stack([stop - steps[:, 1], stop], axis=1)


def shared_tokens(
    spans: Sequence[NDArray[np.float32]], where: Sequence[Span]
) -> tuple[list[slice], NDArray[np.float32]]:
    """Return the rows of each window whose tokens count, and the spans of these, as stored.

    A residue would be taken from the window in which it lies farther from an edge; a token is where
    that holds for its first letter. Windows are cut into other tokens than their neighbors, so
    beside a cut a few letters may be in two tokens, or in none.
    """
    rows, firsts, stops = [], [], []
    shares = pairwise(edges(where))
    for stored, (start, _), (low, high) in zip(spans, where, shares, strict=True):
        first, stop = (span_ends(stored) + start).T
        part = slice(*np.searchsorted(first, [low, high]).tolist())
        rows.append(part)
        firsts.append(first[part])
        stops.append(stop[part])
    return rows, stored_spans(np.concatenate(firsts), np.concatenate(stops))


def edges(where: Sequence[Span]) -> list[int]:
    """Return where the share of each window begins, and the last one's ends."""
    cuts = [(after[0] + before[1]) // 2 for before, after in pairwise(where)]
    return [where[0][0], *cuts, where[-1][1]]


def combine(
    pooling: Pooling, pieces: Sequence[NDArray[np.float32]], where: Sequence[Span]
) -> NDArray[np.float32]:
    """Return a vector (D,), or a matrix (L, D) for `per_residue`, from the pieces of one sequence.

    mean, mean_special and bos: average weighted by the pieces' lengths; max: element-wise maximum;
    per_residue: every residue is taken from the window in which it lies farther from an edge.
    """
    if pooling == "max":
        largest: NDArray[np.float32] = np.stack(pieces).max(axis=0)
        return largest
    if pooling == "per_residue":
        shares = zip(pieces, where, pairwise(edges(where)), strict=True)
        return np.concatenate(
            [piece[low - start : high - start] for piece, (start, _), (low, high) in shares]
        )
    weights = np.array([stop - start for start, stop in where], dtype=np.float32)
    return np.average(np.stack(pieces), axis=0, weights=weights).astype(np.float32)


def stored_residues(
    lengths: NDArray[np.signedinteger[Any]], policy: LongSequences
) -> NDArray[np.int64]:
    """Count the rows that a sequence of each length (n,) has in per-residue datasets: one per
    residue that goes through the model, none when the sequence is skipped.
    """
    rows = lengths.astype(np.int64)
    if policy.max_residues and policy.policy in ("crop", "skip"):
        crop = policy.policy == "crop"
        rows[rows > policy.max_residues] = policy.max_residues if crop else 0
    return rows
