"""Histograms and the timeline of a report, as bars in percent of a plot: the template draws them as
SVG, which needs no script.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.jobs.completion_record import Completion
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.wording import count, duration

BINS = 30
TICKS = 6
"""Most steps between the ticks of an axis: their labels fit a phone."""
LANES = 40
"""Rows of the timeline that are drawn."""
_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


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
    """A mark on an axis; place: percent of its length."""

    place: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A titled plot; height in pixels; words: for readers who do not see it."""

    name: str
    title: str
    words: str
    x_title: str
    x_ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...]
    y_ticks: tuple[Tick, ...] = ()
    height: int = 240


def lengths(counts: dict[int, int]) -> Chart:
    """Return the histogram of the distinct sequences' lengths, in equal steps of the logarithm."""
    values = np.array(sorted(counts))
    weights = np.array([counts[length] for length in values.tolist()])
    low, high = int(values[0]), int(values[-1]) + 1
    edges = np.unique(np.round(np.geomspace(low, high, min(BINS, high - low) + 1)).astype(int))
    heights, _ = np.histogram(values, bins=edges, weights=weights)
    middle = values[np.searchsorted(weights.cumsum(), weights.sum() / 2)]
    rounds = [n * 10**power for power in range(10) for n in (1, 2, 5)]
    inside = [n for n in rounds if low <= n <= high]
    marks = np.array(inside[:: math.ceil(len(inside) / (TICKS + 1)) or 1])
    places = 100 * np.log(np.concatenate([edges, marks]) / low) / (math.log(high / low) or 1.0)
    return Chart(
        "lengths",
        "Lengths of the distinct sequences",
        f"From {low:,} to {high - 1:,} residues, median {middle:,}.",
        "residues",
        tuple(Tick(place, f"{n:,}") for place, n in zip(places[len(edges) :], marks, strict=True)),
        _bars(
            places[: len(edges)],
            heights,
            [
                f"{a:,} to {b - 1:,} residues" if b - a > 1 else f"{a:,} residues"
                for a, b in pairwise(edges.tolist())
            ],
        ),
        _ticks(0.0, float(heights.max())),
    )


def norms(values: NDArray[np.float64]) -> Chart:
    """Return the histogram of the vectors' Euclidean norms."""
    heights, edges = np.histogram(values, bins=BINS)
    return Chart(
        "norms",
        "Norms of the vectors",
        f"{len(values):,} vectors, median norm {np.median(values):.4g}.",
        "Euclidean norm",
        _ticks(float(edges[0]), float(edges[-1])),
        _bars(
            np.linspace(0, 100, len(edges)),
            heights,
            [f"{a:.4g} to {b:.4g}" for a, b in pairwise(edges.tolist())],
        ),
        _ticks(0.0, float(heights.max())),
    )


def _bars(edges: NDArray[Any], heights: NDArray[Any], names: list[str]) -> tuple[Bar, ...]:
    """Return bars between edges, in percent of the plot, and as high as the counts."""
    scale = 100 / (float(heights.max()) or 1.0)
    return tuple(
        Bar(left, 100 - scale * count, right - left, scale * count, "blue", f"{name}: {count:,.0f}")
        for (left, right), count, name in zip(pairwise(edges), heights.tolist(), names, strict=True)
    )


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
    spans = [
        (run.worker.host, _time(run.started), _time(run.ended), "blue", run.bucket,
         count(run.computed, "sequence"))
        for run in records
    ]  # fmt: skip
    spans += [
        (job.host, _time(job.started), _time(job.ended), "red", job.bucket,
         job.reason.partition("\n")[0][:160])
        for job in attempts
        if job.outcome == "failed" and job.ended
    ]  # fmt: skip
    if not spans:
        return None
    begin = min(span[1] for span in spans)
    total = max(1.0, *(span[2] - begin for span in spans))
    rows: list[tuple[str, float]] = []  # host, and the end of its last job
    bars = []
    for host, start, end, color, bucket, text in sorted(spans):
        free = (n for n, (owner, last) in enumerate(rows) if owner == host and last <= start)
        row = next(free, len(rows))
        rows[row : row + 1] = [(host, end)]
        tip = f"bucket {bucket}, {host}: {text}, {duration(end - start)}"
        width = max(100 * (end - start) / total, 0.15)
        bars.append(Bar(100 * (start - begin) / total, row + 0.1, width, 0.8, color, tip))
    drawn = min(len(rows), LANES)
    high = 100 / drawn
    unit = next(name for name, seconds in _UNITS.items() if total >= 2 * seconds or seconds == 1)
    failed = sum(bar.color == "red" for bar in bars)
    return Chart(
        "timeline",
        "Jobs over time",
        count(len(spans) - failed, "finished bucket")
        + (f" and {count(failed, 'failed start')} (in red)" if failed else "")
        + f" on {count(len({host for host, _ in rows}), 'host')} within {duration(total)}."
        + (f" The first {LANES} of {len(rows):,} rows are drawn." if len(rows) > LANES else ""),
        f"{unit} since {datetime.fromtimestamp(begin, UTC):%Y-%m-%d %H:%M:%S} UTC",
        _ticks(0.0, total / _UNITS[unit]),
        tuple(
            Bar(bar.x, high * bar.y, bar.width, high * bar.height, bar.color, bar.tip)
            for bar in bars
            if bar.y < LANES
        ),
        height=max(48, 24 * drawn) if drawn <= 16 else 10 * drawn,
    )


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
