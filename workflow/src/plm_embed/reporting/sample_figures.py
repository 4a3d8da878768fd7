"""The figures of the report about a sample of the vectors: their map, and their norms."""

import numpy as np
import plotly.graph_objects as go

from plm_embed.reporting.figures import BINS, BLUE, GREEN, ORANGE, VERMILION, html, short
from plm_embed.reporting.sample import Sample

PALETTE = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", VERMILION, "#F0E442", "#000000", "#999999")
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "cross",
    "triangle-up",
    "x",
    "star",
    "pentagon",
    "circle-open",
)


def embedding_map(sample: Sample) -> str:
    """The first two principal components of a sample, colored by a kept column or else by
    length.
    """
    figure = go.Figure()
    x, y = sample.coordinates.T
    axes = [
        f"component {i + 1} ({100 * share:.0f} % of the variance)"
        for i, share in enumerate(sample.explained)
    ]
    hover = [
        f"{id}, {length:,} residues"
        for id, length in zip(sample.ids, sample.lengths.tolist(), strict=True)
    ]
    if sample.column:
        names = sorted(
            set(sample.categories), key=lambda name: (name in ("other", "no value"), name)
        )
        for at, name in enumerate(names):
            mine = [i for i, category in enumerate(sample.categories) if category == name]
            gray = name in ("other", "no value")
            figure.add_scatter(
                x=x[mine].tolist(),
                y=y[mine].tolist(),
                mode="markers",
                name=short(name),
                marker={
                    "color": "#BBBBBB" if gray else PALETTE[at % len(PALETTE)],
                    "symbol": SYMBOLS[at % len(SYMBOLS)],
                    "size": 7,
                    "opacity": 0.8,
                },
                hovertext=[hover[i] for i in mine],
                hovertemplate="%{hovertext}<extra>%{fullData.name}</extra>",
            )
        figure.update_layout(legend={"title": {"text": sample.column, "side": "top"}})
    else:
        figure.add_scatter(
            x=x.tolist(),
            y=y.tolist(),
            mode="markers",
            marker={
                "color": np.log10(sample.lengths).tolist(),
                "colorscale": "Cividis",
                "size": 7,
                "opacity": 0.8,
                "colorbar": {"title": "log10(length)"},
            },
            hovertext=hover,
            hovertemplate="%{hovertext}<extra></extra>",
        )
    figure.update_layout(xaxis={"title": axes[0]}, yaxis={"title": axes[1]})
    return html(
        figure,
        "map",
        f"{len(sample.ids):,} vectors on their first two principal components",
        height=540,
    )


def norms(sample: Sample) -> str:
    """Histogram of the vectors' lengths."""
    found, edges = np.histogram(sample.norms, bins=BINS)
    figure = go.Figure()
    figure.add_bar(
        x=((edges[:-1] + edges[1:]) / 2).tolist(),
        y=found.tolist(),
        width=np.diff(edges).tolist(),
        marker={"color": GREEN, "line": {"width": 1, "color": "white"}},
        hovertemplate="norm %{x:.3g}: %{y:,} vectors<extra></extra>",
    )
    figure.update_layout(
        xaxis={"title": "Euclidean norm"}, yaxis={"title": "vectors"}, showlegend=False
    )
    return html(figure, "norms", "Norms of the vectors in the sample")
