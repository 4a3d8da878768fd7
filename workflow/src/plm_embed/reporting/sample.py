"""Some vectors of a master for the report's map: two coordinates each, and a category to color."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.master.gather import INDEX_COLUMNS
from plm_embed.reading.find import MAKE_AGAIN

SAMPLE = 2000
"""Vectors on the map, evenly spaced in the order of the keys, which is a random order of the
sequences.
"""
COLORS = 8
"""Categories with a color of their own; the rest is one more."""


@dataclass(frozen=True)
class Sample:
    """Some vectors: coordinates (k, 2), norms (k,), and for each an id, a length and the color's
    category.
    """

    coordinates: NDArray[np.float64]
    explained: tuple[float, float]
    norms: NDArray[np.float64]
    ids: tuple[str, ...]
    lengths: NDArray[np.int32]
    column: str
    categories: tuple[str, ...]


def take_sample(
    index: Path, rows: NDArray[np.int64], vectors: NDArray[np.float64], lengths: NDArray[np.int32]
) -> Sample:
    coordinates, explained = principal_components(vectors)
    kept = [name for name in read_schema(index, MAKE_AGAIN).names if name not in INDEX_COLUMNS]
    ids: dict[int, str] = {}
    values: dict[str, dict[int, str]] = {name: {} for name in kept}
    for batch in read_batches(index, remedy=MAKE_AGAIN):
        table = batch.filter(pc.is_in(batch["row"], value_set=pa.array(rows)))
        numbers = table["row"].to_pylist()
        for row, id in zip(numbers, table["id"].to_pylist(), strict=True):
            ids.setdefault(row, id)
        for name in kept:
            for row, value in zip(numbers, table[name].to_pylist(), strict=True):
                if value:
                    values[name].setdefault(row, value)
    column = _coloring(values, len(rows))
    categories = [values[column].get(row, "no value") if column else "" for row in rows.tolist()]
    return Sample(
        coordinates=coordinates,
        explained=explained,
        norms=np.linalg.norm(vectors, axis=1),
        ids=tuple(ids.get(row, "") for row in rows.tolist()),
        lengths=lengths,
        column=column,
        categories=tuple(_most_frequent(categories)),
    )


def principal_components(
    vectors: NDArray[np.float64],
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Coordinates (k, 2) along the first two principal components, and the share of the variance of
    each.
    """
    centered = vectors - vectors.mean(axis=0)
    left, singular, _ = np.linalg.svd(centered, full_matrices=False)
    variance = singular**2
    shares = variance / (variance.sum() or 1.0)
    return left[:, :2] * singular[:2], (float(shares[0]), float(shares[1]))


def _coloring(values: dict[str, dict[int, str]], count: int) -> str:
    """The kept column that says most with few colors: the one whose most frequent values cover
    most rows.
    """

    def covered(name: str) -> float:
        found = _counts(list(values[name].values()))
        return sum(sorted(found.values(), reverse=True)[:COLORS]) / count if len(found) > 1 else 0.0

    best = max(values, key=covered, default="")
    return best if best and covered(best) > 0 else ""


def _counts(values: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def _most_frequent(values: Sequence[str]) -> list[str]:
    """The values, all but the most frequent ones replaced by 'other'."""
    counts = _counts(values)
    named = set(sorted(counts, key=lambda value: (-counts[value], value))[:COLORS])
    return [value if value in named else "other" for value in values]
