"""The charts of the report about sequences and the work on them."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.reporting.plots.charts import (
    Bar,
    Bars,
    Cell,
    Chart,
    Mark,
    Text,
    clock,
    extent,
    linear,
    logarithmic,
    short,
)
from plm_embed.reporting.runs import Run, moment, without_end, workers_of
from plm_embed.wording import duration

WORKERS_WITH_BARS = 16
WORDED = 2000
"""Buckets on the timeline that say what they are; of more, only failed attempts do."""
BINS = 30


def lengths(counts: dict[int, int]) -> Chart:
    """Histogram of the unique sequences' lengths in equal steps of the logarithm."""
    values = np.array(sorted(counts))
    weights = np.array([counts[length] for length in values.tolist()])
    low, high = int(values[0]), int(values[-1]) + 1
    edges = np.unique(np.round(np.geomspace(low, high, min(BINS, high - low) + 1)).astype(int))
    found, _ = np.histogram(values, bins=edges, weights=weights)
    residues, _ = np.histogram(values, bins=edges, weights=weights * values)
    shares = (100 * residues.cumsum() / (residues.sum() or 1)).tolist()
    x, y = logarithmic("residues", low, high), linear("distinct sequences", 0, float(found.max()))
    bars, line, table = [], [], []
    for (a, b), count, share in zip(pairwise(edges.tolist()), found.tolist(), shares, strict=True):
        name = f"{a:,} to {b - 1:,}" if b - 1 > a else f"{a:,}"
        tip = f"{name} residues: {count:,.0f} sequences; {share:.0f} % of all residues up to here"
        bars.append(bar(x.percent(a), x.percent(b), y.percent(count), "blue", tip))
        line.append((x.percent(math.sqrt(a * b)), round(100 - share, 2)))
        table.append((a, b - 1, int(count), round(share, 1)))
    at = np.searchsorted(weights.cumsum(), weights.sum() / 2)
    return Chart(
        name="lengths",
        title="Lengths of the distinct sequences",
        words=f"From {low:,} to {high - 1:,} residues, median {values[at]:,}.",
        x=x,
        y=y,
        right=linear("share of residues", 0, 100, " %"),
        bars=tuple(bars),
        line=tuple(line),
        legend=(("blue", "sequences"), ("line", "share of all residues up to this length")),
        head=("residues from", "to", "sequences", "% of residues up to here"),
        table=tuple(table),
    )


def bar(left: float, right: float, height: float, kind: str, tip: str) -> Bar:
    """A column that stands on the axis."""
    return Bar(left, round(100 - height, 2), round(right - left, 2), height, kind, tip)


def outcomes(counts: dict[str, int]) -> Bars:
    """Bars of how many records ended how; names that begin with 'skipped' stand out."""
    most = max(counts.values(), default=0) or 1
    kinds = {
        name: "red" if name.startswith("skipped") else "orange" if "cleaned" in name else "blue"
        for name in counts
    }
    rows = [
        (name.replace("_", " "), f"{count:,}", round(100 * count / most, 2), kinds[name])
        for name, count in counts.items()
    ]
    head = ("outcome", "records")
    table = tuple(counts.items())
    return Bars("outcomes", "What became of the records", head, tuple(rows), head, table)


def speed(runs: Sequence[Run]) -> Bars | Chart:
    """Tokens per second and busy share by worker: bars, or a point cloud when there are many
    workers.
    """
    by_worker: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.worker):
        by_worker.setdefault(f"{run.worker} · {run.device}", []).append(run)
    rates, shares = {}, {}
    for name, mine in by_worker.items():
        seconds = sum(run.token_seconds for run in mine)
        rates[name] = sum(run.tokens for run in mine) / seconds
        shares[name] = 100 * sum(run.busy * run.token_seconds for run in mine) / seconds
    words = {n: f"{rates[n]:,.0f} tokens/s, busy {shares[n]:.0f} %" for n in by_worker}
    most = max(rates.values())
    columns = ("worker", "device", "tokens per second", "busy, %")
    table: list[tuple[Cell, ...]] = []
    for name, rate in rates.items():
        worker, _, device = name.partition(" · ")
        table.append((worker, device, round(rate, 1), round(shares[name], 1)))
    if len(by_worker) <= WORKERS_WITH_BARS:
        rows = [
            (name.split(" · ")[0], words[name], round(100 * rate / most, 2), "blue")
            for name, rate in rates.items()
        ]
        head = ("worker", "tokens per second")
        return Bars("speed", "Speed of each worker", head, tuple(rows), columns, tuple(table))
    x = linear("tokens per second", *extent(list(rates.values())))
    y = linear("busy, %", *extent(list(shares.values())))
    marks = [
        Mark(x.percent(rates[name]), 100 - y.percent(shares[name]), "s0", f"{name}: {words[name]}")
        for name in rates
    ]
    lowest, middle = min(rates.values()), float(np.median(list(rates.values())))
    return Chart(
        name="speed",
        title="Speed and busy share of each worker",
        words=f"{len(rates):,} workers: from {lowest:,.0f} to {most:,.0f} tokens per second, "
        f"median {middle:,.0f}.",
        x=x,
        y=y,
        marks=tuple(marks),
        head=columns,
        table=tuple(table),
        listed=False,
    )


def timeline(runs: Sequence[Run], attempts: Sequence[Heartbeat]) -> Chart:
    """When each bucket was embedded, a lane per worker; behind them the attempts of jobs,
    failed ones in red.
    """
    owners = workers_of(attempts, runs)
    workers = sorted({run.worker for run in runs} | set(owners))
    lane = {name: at for at, name in enumerate(workers)}
    named = len(workers) <= WORKERS_WITH_BARS
    times = [(one.started, one.ended) for one in runs]
    times += [(one.started, one.ended) for one in attempts]
    starts = [moment(start) for start, _ in times]
    ends = [moment(end) for _, end in times if end]
    begin, end = min(starts), max(ends + starts)
    x = clock("time (UTC)", begin, end)
    unit = 100 / len(workers)
    finished = {run.bucket for run in runs}

    room = 0.5 if named else 0.9  # names stand above the bars

    def box(name: str, times: tuple[str, str], share: float, looks: tuple[str, str]) -> Bar:
        """A bar in a lane from one time to another: its share of the height, its color, its tip."""
        left, right = (x.percent(moment(time)) for time in times)
        top = unit * (lane[name] + 0.95 - room * (1 + share) / 2)
        width = round(max(right - left, 0.15), 2)
        return Bar(left, round(top, 2), width, round(unit * room * share, 2), *looks)

    bars, marks, table = [], [], []
    for one, name in zip(attempts, owners, strict=True):
        table.append(("attempt", one.bucket, name, one.started, one.ended, one.outcome))
        if one.outcome == "no end":
            tip = f"bucket {one.bucket}: {without_end(one, finished)}"
            middle = round(unit * (lane[name] + 0.7), 2)
            marks.append(Mark(x.percent(moment(one.started)), middle, "sx", tip))
        else:
            tip = f"bucket {one.bucket}: {duration(one.seconds)} {short(one.reason, 160)}"
            kind = "red" if one.outcome == "failed" else "gray"
            bars.append(box(name, (one.started, one.ended), 1.0, (kind, tip.strip())))
    for at, run in enumerate(sorted(runs, key=lambda run: run.started)):
        what = f"{run.computed:,} sequences in {duration(run.seconds)}"
        tip = f"bucket {run.bucket}, {run.worker}: {what}"
        looks = "blue" if at % 2 else "sky", tip if len(runs) <= WORDED else ""
        bars.append(box(run.worker, (run.started, run.ended), 0.7, looks))
        table.append(("bucket", run.bucket, run.worker, run.started, run.ended, "complete"))
    day = datetime.fromtimestamp(begin, UTC)
    found = [("blue", "bucket")] if runs else []
    kinds = {bar.kind for bar in bars}
    found += [
        (k, m) for k, m in (("gray", "attempt"), ("red", "attempt that failed")) if k in kinds
    ]
    found += [("sx", "start without an end")] if marks else []
    return Chart(
        name="timeline",
        title="Buckets and attempts over time",
        words=f"{len(runs):,} buckets on {len({run.worker for run in runs}):,} workers within "
        f"{duration(end - begin)} from {day:%Y-%m-%d %H:%M:%S} UTC.",
        x=x,
        height=max(60, (44 if named else 8) * min(len(workers), 80)),
        bars=tuple(bars),
        marks=tuple(marks),
        texts=tuple(
            Text(0, round(unit * (lane[name] + 0.45), 2), short(name)) for name in workers if named
        ),
        legend=tuple(found),
        head=("what", "name", "worker", "started", "ended", "outcome"),
        table=tuple(table) if len(table) <= WORDED else (),
        listed=False,
    )
