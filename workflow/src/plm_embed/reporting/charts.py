"""Histograms and the timeline of a report, as bars in percent of a plot: the template draws them as
SVG, which needs no script.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plm_embed.jobs.completion_record import Completion
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.wording import duration

BINS = 30
TICKS = 6
"""Most steps between the ticks of an axis: their labels fit a phone."""
LANES = 40
"""Rows of the timeline that are drawn."""
_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


@dataclass(frozen=True)
class Bar:
    """A rectangle with its top left corner at x, y; `color` is a class of the style sheet, `tip` a
    text for the pointer.
    """

    x: float
    y: float
    width: float
    height: float
    color: str
    tip: str


@dataclass(frozen=True)
class Tick:
    """A mark on an axis; at: percent of its length."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A titled plot; height in pixels; words: for readers who do not see it; legend: color and
    meaning.
    """

    name: str
    title: str
    words: str
    x_title: str
    x_ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...]
    y_title: str = ""
    y_ticks: tuple[Tick, ...] = ()
    height: int = 240
    legend: tuple[tuple[str, str], ...] = ()


def lengths(counts: dict[int, int]) -> Chart:
    """Return the histogram of the distinct sequences' lengths, in equal steps of the logarithm."""
    values = np.array(sorted(counts))
    weights = np.array([counts[length] for length in values.tolist()])
    low, high = int(values[0]), int(values[-1]) + 1
    edges = np.unique(np.round(np.geomspace(low, high, min(BINS, high - low) + 1)).astype(int))
    heights, _ = np.histogram(values, bins=edges, weights=weights)
    names = [
        f"{a:,} to {b - 1:,} residues" if b - a > 1 else f"{a:,} residues"
        for a, b in pairwise(edges.tolist())
    ]
    middle = values[np.searchsorted(weights.cumsum(), weights.sum() / 2)]
    round_numbers = [n * 10**power for power in range(10) for n in (1, 2, 5)]
    inside = [n for n in round_numbers if low <= n <= high]
    marks = inside[:: math.ceil(len(inside) / (TICKS + 1)) or 1]
    span = math.log(high / low) or 1.0
    return _histogram(
        name="lengths",
        title="Lengths of the distinct sequences",
        words=f"From {low:,} to {high - 1:,} residues, median {middle:,}.",
        axes=("residues", "distinct sequences"),
        edges=[100 * math.log(edge / low) / span for edge in edges.tolist()],
        heights=heights,
        names=names,
        x_ticks=tuple(Tick(100 * math.log(n / low) / span, f"{n:,}") for n in marks),
    )


def norms(values: NDArray[np.float64]) -> Chart:
    """Return the histogram of the vectors' Euclidean norms."""
    heights, edges = np.histogram(values, bins=BINS)
    low, high = float(edges[0]), float(edges[-1])
    names = [f"{a:.4g} to {b:.4g}" for a, b in pairwise(edges.tolist())]
    return _histogram(
        name="norms",
        title="Norms of the vectors",
        words=f"{len(values):,} vectors, median norm {np.median(values):.4g}.",
        axes=("Euclidean norm", "vectors"),
        edges=np.linspace(0, 100, len(edges)).tolist(),
        heights=heights,
        names=names,
        x_ticks=_ticks(low, high),
    )


def _histogram(
    *,
    name: str,
    title: str,
    words: str,
    axes: tuple[str, str],
    edges: Sequence[float],
    heights: NDArray[np.float64],
    names: Sequence[str],
    x_ticks: tuple[Tick, ...],
) -> Chart:
    """Return bars between edges, in percent of the plot, and as high as the counts."""
    ticks = _ticks(0.0, float(heights.max()) or 1.0)
    scale = 100 / (float(heights.max()) or 1.0)
    bars = tuple(
        Bar(left, 100 - scale * count, right - left, scale * count, "blue", f"{text}: {count:,.0f}")
        for (left, right), count, text in zip(pairwise(edges), heights.tolist(), names, strict=True)
    )
    return Chart(name, title, words, axes[0], x_ticks, bars, axes[1], ticks)


def _ticks(low: float, high: float) -> tuple[Tick, ...]:
    """Return ticks at round numbers between two others."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = power * next(n for n in (1, 2, 2.5, 5, 10) if n * power * TICKS >= span * 0.999)
    numbers = (step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1))
    return tuple(Tick(100 * (number - low) / span, f"{number:,.10g}") for number in numbers)


def timeline(records: Iterable[Completion], attempts: Iterable[Heartbeat]) -> Chart | None:
    """Return the jobs over time, in rows of jobs that followed one another on one host; the failed
    ones in red. None when nothing has ended.
    """
    jobs = [
        (run.worker.host, run.started, run.ended, "blue", f"{run.computed:,} sequences", run.bucket)
        for run in records
    ]
    jobs += [
        (one.host, one.started, one.ended, "red", one.reason.partition("\n")[0][:160], one.bucket)
        for one in attempts
        if one.outcome == "failed" and one.ended
    ]
    if not jobs:
        return None
    spans = sorted(
        (host, seconds(start), seconds(end), color, f"bucket {bucket}, {host}: {text}")
        for host, start, end, color, text, bucket in jobs
    )
    begin = min(start for _, start, *_ in spans)
    end = max([begin + 1, *(end for _, _, end, *_ in spans)])
    rows: list[tuple[str, float]] = []  # host, and the end of its last job
    places = []
    for host, start, stop, *_ in spans:
        free = (at for at, (owner, last) in enumerate(rows) if owner == host and last <= start)
        row = next(free, len(rows))
        rows[row : row + 1] = [(host, stop)]
        places.append(row)
    drawn = min(len(rows), LANES)
    high, scale = 100 / drawn, 100 / (end - begin)
    bars = tuple(
        Bar(
            scale * (start - begin),
            high * (row + 0.1),
            max(scale * (stop - start), 0.15),
            0.8 * high,
            color,
            f"{tip}, {duration(stop - start)}",
        )
        for row, (_, start, stop, color, tip) in zip(places, spans, strict=True)
        if row < LANES
    )
    steps = (*_SECONDS, *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)))
    step = next((s for s in steps if (end - begin) / s <= TICKS - 2), steps[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43200 else "%m-%d"
    numbers = (step * n for n in range(math.ceil(begin / step), math.floor(end / step) + 1))
    day = datetime.fromtimestamp(begin, UTC)
    legend = {"blue": "bucket", "red": "attempt that failed"}
    return Chart(
        name="timeline",
        title="Jobs over time",
        words=f"{len(jobs):,} jobs on {len({host for host, *_ in jobs}):,} hosts within "
        f"{duration(end - begin)} from {day:%Y-%m-%d %H:%M:%S} UTC."
        + (f" The first {LANES} of {len(rows):,} rows are drawn." if len(rows) > LANES else ""),
        x_title="time (UTC)",
        x_ticks=tuple(
            Tick(scale * (n - begin), datetime.fromtimestamp(n, UTC).strftime(form))
            for n in numbers
        ),
        bars=bars,
        height=max(48, 24 * drawn) if drawn <= 16 else 10 * drawn,
        legend=tuple(
            (color, legend[color]) for color in legend if any(b.color == color for b in bars)
        ),
    )


def seconds(text: str) -> float:
    """Return the timestamp, in seconds, of an ISO 8601 text."""
    return datetime.fromisoformat(text).timestamp()
