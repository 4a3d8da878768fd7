"""Two coordinates for each of some vectors: principal components, and UMAP for a few thousand.

UMAP (McInnes, Healy, Melville 2018) is written out here because its package compiles itself for
ten seconds in every process and brings 200 MB of others. The forces of an epoch are added up
before a point moves, so that NumPy computes them at once.
"""

import numpy as np
from numpy.typing import NDArray

NEIGHBORS = 15
EPOCHS = 200
REPELLED = 5
"""Random vectors from which both ends of an edge are pushed away, in each epoch."""
# 1 / (1 + A d^2B) fits UMAP's curve for min_dist 0.1 and spread 1
A, B = 1.5769, 0.8951
STEP = 0.25
"""Of the first epoch; it shrinks to nothing. Smaller than UMAP's 1, since forces are added up."""

Points = NDArray[np.float64]
Singles = NDArray[np.float32]


def principal_components(vectors: Points) -> tuple[Points, tuple[float, float]]:
    """Coordinates (k, 2) along the first two principal components of vectors (k, D), and the share
    of the variance of each.
    """
    centered = vectors - vectors.mean(axis=0)
    # of the smaller matrix of products: a fourth of the time of a singular value decomposition
    tall = len(centered) >= centered.shape[1]
    products = centered.T @ centered if tall else centered @ centered.T
    first = np.linalg.eigh(products).eigenvectors[:, :-3:-1]
    along = first if tall else centered.T @ first
    places = centered @ first if tall else first * np.linalg.norm(along, axis=0)
    places *= np.sign(along[np.abs(along).argmax(axis=0), [0, 1]])
    shares = (places**2).sum(axis=0) / (np.trace(products) or 1.0)
    return places, (float(shares[0]), float(shares[1]))


def umap(vectors: Points, start: Points) -> Points:
    """UMAP coordinates (k, 2) of vectors (k, D), k > 2, by Euclidean distance; the same on every
    call. start: coordinates (k, 2) to begin with.
    """
    random = np.random.default_rng(1)
    head, tail, weight = _edges(vectors)
    begin = 10 * start / (np.abs(start).max() or 1.0) + random.normal(scale=1e-3, size=start.shape)
    x, y = begin.T.astype(np.float32)
    for epoch in range(EPOCHS):
        drawn = random.random(len(weight), np.float32) < weight / weight.max()
        one = np.concatenate([head[drawn], tail[drawn]])
        other = np.concatenate([tail[drawn], head[drawn]])
        right, up = x[one] - x[other], y[one] - y[other]
        square = np.maximum(right * right + up * up, 1e-12)
        power = square**B
        pull = -2 * A * B * power / (square * (1 + A * power))
        pulled = _summed(one, pull, right, up, len(x))
        pushed = np.repeat(one, REPELLED)
        other = random.integers(len(x), size=len(pushed), dtype=np.int32)
        right, up = x[pushed] - x[other], y[pushed] - y[other]
        square = right * right + up * up
        push = 2 * B / ((0.001 + square) * (1 + A * square**B))
        step = STEP * (1 - epoch / EPOCHS) * (pulled + _summed(pushed, push, right, up, len(x)))
        x, y = x + step[0], y + step[1]
    places = np.stack([x, y], axis=1).astype(np.float64)
    centered: Points = places - places.mean(axis=0)
    return centered


def _summed(
    at: NDArray[np.int64], force: Singles, right: Singles, up: Singles, count: int
) -> Singles:
    """The forces (2, count) on each point, from those along the way to some others."""
    along = (np.clip(force * way, -4, 4) for way in (right, up))
    return np.stack([np.bincount(at, one, count) for one in along]).astype(np.float32)


def _edges(vectors: Points) -> tuple[NDArray[np.int64], NDArray[np.int64], Points]:
    """Each pair of near vectors once, with the weight of their edge, 0 to 1."""
    count = min(NEIGHBORS, len(vectors) - 1)
    square = (vectors**2).sum(axis=1)
    distance = np.sqrt(np.maximum(square[:, None] + square - 2 * vectors @ vectors.T, 0))
    np.fill_diagonal(distance, np.inf)
    near = np.argpartition(distance, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(distance, near, axis=1)
    beyond = found - found.min(axis=1, keepdims=True)
    # a width for each vector, so that its weights add up to log2 of their number
    low, high = np.zeros(len(vectors)), np.full(len(vectors), found.max() or 1.0)
    for _ in range(40):
        width = (low + high) / 2
        total = np.exp(-beyond / np.maximum(width, 1e-12)[:, None]).sum(axis=1)
        low, high = (
            np.where(total < np.log2(count), width, low),
            np.where(total < np.log2(count), high, width),
        )
    weight = np.zeros_like(distance)
    np.put_along_axis(
        weight, near, np.exp(-beyond / np.maximum(width, 1e-3 * found.mean() + 1e-12)[:, None]), 1
    )
    both = weight + weight.T - weight * weight.T
    head, tail = np.nonzero(np.triu(both))
    return head, tail, both[head, tail]
