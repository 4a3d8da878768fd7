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
    places = 10 * start / (np.abs(start).max() or 1.0) + random.normal(scale=1e-3, size=start.shape)
    for epoch in range(EPOCHS):
        drawn = random.random(len(weight)) < weight / weight.max()
        ends = (
            np.concatenate([head[drawn], tail[drawn]]),
            np.concatenate([tail[drawn], head[drawn]]),
        )
        gap = places[ends[0]] - places[ends[1]]
        square = np.maximum((gap**2).sum(axis=1), 1e-12)
        pull = -2 * A * B * square ** (B - 1) / (1 + A * square**B)
        force = _summed(ends[0], np.clip(pull[:, None] * gap, -4, 4), len(places))
        pushed = np.repeat(ends[0], REPELLED)
        gap = places[pushed] - places[random.integers(len(places), size=len(pushed))]
        square = (gap**2).sum(axis=1)
        push = 2 * B / ((0.001 + square) * (1 + A * square**B))
        force += _summed(pushed, np.clip(push[:, None] * gap, -4, 4), len(places))
        places += STEP * (1 - epoch / EPOCHS) * force
    centered: Points = places - places.mean(axis=0)
    return centered


def _summed(at: NDArray[np.int64], force: Points, count: int) -> Points:
    return np.stack([np.bincount(at, one, count) for one in force.T], axis=1)


def _edges(vectors: Points) -> tuple[NDArray[np.int64], NDArray[np.int64], Points]:
    """Each pair of near vectors once, with the weight of their edge, 0 to 1."""
    count = min(NEIGHBORS, len(vectors) - 1)
    square = (vectors**2).sum(axis=1)
    distance = np.sqrt(np.maximum(square[:, None] + square - 2 * vectors @ vectors.T, 0))
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1, kind="stable")[:, :count]
    found = np.take_along_axis(distance, near, axis=1)
    beyond = np.maximum(found - found[:, :1], 0)
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
