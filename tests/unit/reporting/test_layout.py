"""Maps of vectors: directions of most variance, and neighbors that stay neighbors."""

import numpy as np
import pytest

from plm_embed.reporting.plots.layout import principal_components, umap


def test_principal_components_are_those_of_the_data() -> None:
    random = np.random.default_rng(1)
    vectors = np.outer(random.normal(size=200), [3.0, 4.0, 0.0]) + np.outer(
        random.normal(size=200), [0.0, 0.0, 1.0]
    )
    coordinates, (first, second) = principal_components(vectors)
    assert first + second == pytest.approx(1) and first > 0.9
    along = (vectors - vectors.mean(axis=0)) @ [0.6, 0.8, 0.0]
    assert abs(np.corrcoef(coordinates[:, 0], along)[0, 1]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (12, 12), (2, 5), (5, 2)])
def test_principal_components_are_those_of_a_singular_value_decomposition(shape) -> None:
    vectors = np.random.default_rng(2).normal(size=shape) * np.arange(1, shape[1] + 1)
    coordinates, shares = principal_components(vectors)
    left, singular, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(
        np.abs(coordinates), np.abs(left * singular)[:, :2], atol=1e-6 * singular[0]
    )
    np.testing.assert_allclose(shares, (singular**2 / (singular**2).sum())[:2], atol=1e-12)


def trustworthiness(of: np.ndarray, places: np.ndarray, neighbors: int) -> float:
    """Venna and Kaski 2001: 1 where the neighbors of every place are those of its vector, less the
    further away these are by rank.
    """
    ranks = np.argsort(np.argsort(distances(of), axis=1), axis=1)
    near = np.argsort(distances(places), axis=1)[:, 1 : neighbors + 1]
    beyond = np.maximum(np.take_along_axis(ranks, near, axis=1) - neighbors, 0).sum()
    count = len(of)
    return float(1 - 2 * beyond / (count * neighbors * (2 * count - 3 * neighbors - 1)))


def distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points, axis=2)


def test_umap_keeps_neighbors_and_is_the_same_every_time() -> None:
    """A sheet that is rolled up, whose neighbors a projection mixes."""
    random = np.random.default_rng(1)
    turn = np.sort(random.uniform(0, 12, 400))
    sheet = np.stack([turn * np.cos(turn), random.uniform(0, 6, 400), turn * np.sin(turn)], axis=1)
    flat, _ = principal_components(sheet)
    places = umap(sheet, flat)
    kept, before = (trustworthiness(sheet, one, 10) for one in (places, flat))
    assert kept > 0.98 and kept > before
    assert (places == umap(sheet, flat)).all()


@pytest.mark.parametrize("vectors", [np.eye(3), np.zeros((5, 4)), np.repeat(np.eye(4), 20, axis=0)])
def test_umap_of_few_or_equal_vectors_is_finite(vectors: np.ndarray) -> None:
    start, _ = principal_components(vectors)
    assert np.isfinite(umap(vectors, start)).all()
