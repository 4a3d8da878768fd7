"""The histogram of a report, as bars in percent of a plot, for the template to draw as SVG."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

BINS = 30
TICKS = 6
"""Most steps between the ticks of an axis: their labels fit a phone."""


class Bar(NamedTuple):
    """A bar with its left end at x, in percent of the plot; `tip` is a text for the pointer."""

    x: float
    width: float
    height: float
    tip: str


class Tick(NamedTuple):
    """A mark on an axis; place: percent of its length."""

    place: float
    label: str


class Histogram(NamedTuple):
    """A histogram; words: for readers who do not see it."""

    words: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    bars: Sequence[Bar]


def lengths(counts: dict[int, int]) -> Histogram:
    """Return the histogram of the distinct sequences' lengths, in equal steps of the logarithm."""
    values = np.array(sorted(counts))
    weights = np.array([counts[length] for length in values.tolist()])
    low, high = int(values[0]), int(values[-1]) + 1
    edges = np.unique(np.round(np.geomspace(low, high, min(BINS, high - low) + 1)).astype(int))
    heights = np.histogram(values, bins=edges, weights=weights)[0].astype(int)
    middle, top = values[np.searchsorted(weights.cumsum(), weights.sum() / 2)], int(heights.max())
    rounds = [n * 10**power for power in range(10) for n in (1, 2, 5)]
    inside = [n for n in rounds if low <= n <= high]
    marks = np.array(inside[:: math.ceil(len(inside) / (TICKS + 1)) or 1])
    places = 100 * np.log(np.concatenate([edges, marks]) / low) / (math.log(high / low) or 1.0)
    step = next(n for n in rounds if n * TICKS >= top)
    names = [f"{a:,} to {b - 1:,}" if b - a > 1 else f"{a:,}" for a, b in pairwise(edges.tolist())]
    bars = [
        Bar(left, right - left, 100 * height / top, f"{name} residues: {height:,}")
        for (left, right), height, name in zip(
            pairwise(places[: len(edges)]), heights.tolist(), names, strict=True
        )
    ]
    return Histogram(
        f"From {low:,} to {high - 1:,} residues, median {middle:,}.",
        [Tick(place, f"{n:,}") for place, n in zip(places[len(edges) :], marks, strict=True)],
        [Tick(100 * number / top, f"{number:,}") for number in range(0, top + 1, step)],
        bars,
    )
