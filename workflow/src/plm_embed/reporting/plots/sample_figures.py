"""The charts of the report about a sample of the vectors: their maps, and their norms."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from plm_embed.reporting.plots.charts import Axis, Chart, Mark, extent, linear
from plm_embed.reporting.plots.figures import BINS, bar
from plm_embed.reporting.plots.layout import Points
from plm_embed.reporting.plots.sample import Sample


def maps(sample: Sample) -> Iterator[Chart]:
    """The sample by UMAP and by its first two principal components, colored alike."""
    free = "UMAP", "Keeps neighbors together; large distances mean little."
    yield _map(sample, "umap", free, sample.layout(), ("", ""))
    first, second = (f"component {i + 1} ({100 * s:.0f} %)" for i, s in enumerate(sample.explained))
    straight = "Principal components", "The two directions of most variance."
    yield _map(sample, "pca", straight, sample.components, (first, second))


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
        head=("norm", "vectors"),
        table=tuple((f"{a:.4g} to {b:.4g}", f"{n:,}") for (a, b), n in steps),
    )
