"""The charts of the report about a sample of the vectors: their maps, and their norms."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, repeat

import numpy as np

from plm_embed.reporting.plots.charts import Axis, Chart, Mark, extent, linear
from plm_embed.reporting.plots.figures import BINS, bar
from plm_embed.reporting.plots.layout import Points
from plm_embed.reporting.plots.sample import Sample

MOST_LETTERS = 300_000
"""Of kept columns, in the numbers of the maps."""


def maps(sample: Sample) -> Iterator[Chart]:
    """The sample by UMAP and by its first two principal components, colored alike."""
    free = "UMAP", "Keeps neighbors together; large distances mean little."
    layout = sample.layout()
    yield replace(_map(sample, "umap", free, layout, ("", "")), numbers="pca")
    first, second = (f"component {i + 1} ({100 * s:.0f} %)" for i, s in enumerate(sample.explained))
    straight = "Principal components", "The two directions of most variance."
    pca = _map(sample, "pca", straight, sample.components, (first, second))
    kept = dict(_kept(sample))
    head = ("id", "length", "UMAP 1", "UMAP 2", "component 1", "component 2", *kept)
    places = np.hstack([layout, sample.components]).tolist()
    rounded = ([float(f"{value:.5g}") for value in place] for place in places)
    columns = zip(*kept.values(), strict=True) if kept else repeat(())
    each = zip(sample.ids, sample.lengths.tolist(), rounded, columns, strict=False)
    table = tuple((id, length, *place, *values) for id, length, place, values in each)
    yield replace(pca, head=head, table=table, listed=False)


def _kept(sample: Sample) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kept columns as far as they fit the page; by their ids, the index has the rest."""
    room = MOST_LETTERS
    for name, values in sample.values.items():
        letters = sum(map(len, values))
        if letters <= room:
            room -= letters
            yield name, values


def _map(
    sample: Sample, name: str, words: tuple[str, str], places: Points, axes: tuple[str, str]
) -> Chart:
    x, y = (
        linear(axis, *extent(values.tolist())) if axis else Axis("", *extent(values.tolist()))
        for axis, values in zip(axes, places.T, strict=True)
    )
    each = zip(
        places.tolist(),
        sample.colorings[0].symbols,
        sample.ids,
        sample.lengths.tolist(),
        strict=True,
    )
    marks = tuple(
        Mark(x.percent(a), round(100 - y.percent(b), 2), symbol, f"{id}, {length:,} residues")
        for (a, b), symbol, id, length in each
    )
    return Chart(
        name=name, title=words[0], words=words[1], x=x, y=y, height=430, framed=True, marks=marks
    )


def norms(sample: Sample) -> Chart:
    """Histogram of the vectors' lengths."""
    found, edges = np.histogram(sample.norms, bins=BINS)
    x = linear("Euclidean norm", float(edges[0]), float(edges[-1]))
    y = linear("vectors", 0, float(found.max()))
    steps = list(zip(pairwise(edges.tolist()), found.tolist(), strict=True))
    return Chart(
        name="norms",
        title="Norms of the vectors",
        words=f"{len(sample.norms):,} vectors, median norm {np.median(sample.norms):.4g}.",
        x=x,
        y=y,
        height=240,
        bars=tuple(
            bar(x.percent(a), x.percent(b), y.percent(n), "green", f"{a:.4g} to {b:.4g}: {n:,}")
            for (a, b), n in steps
        ),
        head=("norm from", "to", "vectors"),
        table=tuple((float(f"{a:.5g}"), float(f"{b:.5g}"), n) for (a, b), n in steps),
    )
