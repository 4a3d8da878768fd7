"""The figures of the report, as pieces of HTML for plotly.js: of sequences and of the work on them.
Colors are those of Okabe and Ito, for every eye.
"""

import math
from datetime import datetime
from html import escape
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go

from plm_embed.jobs.attempts import Attempt
from plm_embed.reporting.facts import Run, place

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
WORKERS_WITH_BARS = 40
BINS = 30


def lengths(counts: dict[int, int]) -> str:
    """Histogram of the unique sequences' lengths in equal steps of the logarithm."""
    values, weights = (
        np.array(sorted(counts)),
        np.array([counts[length] for length in sorted(counts)]),
    )
    low, high = values[0], values[-1] + 1
    edges = np.unique(np.round(np.geomspace(low, high, min(BINS, high - low) + 1)).astype(int))
    found, _ = np.histogram(values, bins=edges, weights=weights)
    residues, _ = np.histogram(values, bins=edges, weights=weights * values)
    figure = go.Figure()
    centers = [math.sqrt(a * b) for a, b in pairwise(edges.tolist())]
    ranges = [f"{a:,} to {b - 1:,}" for a, b in pairwise(edges.tolist())]
    widths = [float(b - a) for a, b in pairwise(edges.tolist())]
    figure.add_bar(
        x=[float(a) for a in edges[:-1]],
        y=found.tolist(),
        width=widths,
        offset=0,
        marker={"color": BLUE, "line": {"width": 1, "color": "white"}},
        name="sequences",
        customdata=ranges,
        hovertemplate="%{customdata} residues: %{y:,} sequences<extra></extra>",
    )
    figure.add_scatter(
        x=centers,
        y=(100 * residues.cumsum() / residues.sum()).tolist(),
        yaxis="y2",
        mode="lines+markers",
        marker={"size": 4},
        line={"color": VERMILION, "width": 2},
        name="share of all residues up to here",
        hovertemplate="%{y:.0f} % of all residues<extra></extra>",
    )
    ticks = [
        tick
        for tick in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
        if low <= tick <= high
    ]
    figure.update_layout(
        xaxis={
            "type": "log",
            "title": "residues",
            "tickvals": ticks,
            "ticktext": [f"{tick:,}" for tick in ticks],
        },
        yaxis={"title": "unique sequences"},
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "range": [0, 105],
            "tickvals": [0, 25, 50, 75, 100],
            "ticksuffix": " %",
            "showgrid": False,
        },
    )
    return html(figure, "lengths", "Lengths of the unique sequences")


def fates(counts: dict[str, int]) -> str:
    """Bars of how many records ended how; names that begin with 'skipped' stand out."""
    names = list(reversed(counts))
    labels = [name.replace(": ", ":<br>").replace("_", " ") for name in names]
    colors = [
        VERMILION if name.startswith("skipped") else ORANGE if "event" in name else BLUE
        for name in names
    ]
    figure = go.Figure()
    figure.add_bar(
        x=[counts[name] for name in names],
        y=labels,
        orientation="h",
        marker={"color": colors},
        text=[f"{counts[name]:,}" for name in names],
        textposition="auto",
        hovertemplate="%{y}: %{x:,} records<extra></extra>",
    )
    figure.update_layout(xaxis={"title": "records"}, yaxis={"automargin": True}, showlegend=False)
    return html(figure, "fates", "What became of the records", height=80 + 40 * len(names))


def throughput(runs: list[Run]) -> str:
    """Tokens per second and busy share by worker: bars, or a point cloud when there are many
    workers.
    """
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    busy: dict[str, float] = {}
    for run in runs:
        name = f"{run.worker} · {run.device}"
        spent = run.tokens / run.tokens_per_second
        tokens[name] = tokens.get(name, 0) + run.tokens
        seconds[name] = seconds.get(name, 0.0) + spent
        busy[name] = busy.get(name, 0.0) + run.busy * spent
    names = sorted(tokens, reverse=True)
    rates = [tokens[name] / seconds[name] for name in names]
    shares = [100 * busy[name] / seconds[name] for name in names]
    figure = go.Figure()
    if len(names) <= WORKERS_WITH_BARS:
        figure.add_bar(
            x=rates,
            y=[short(name.split(" · ")[0], 24) for name in names],
            orientation="h",
            marker={"color": BLUE},
            text=[
                f"{rate:,.0f} tokens/s, busy {share:.0f} %"
                for rate, share in zip(rates, shares, strict=True)
            ],
            textposition="auto",
            hovertext=names,
            hovertemplate="%{hovertext}: %{text}<extra></extra>",
        )
        figure.update_layout(
            xaxis={"title": "tokens per second"}, yaxis={"automargin": True}, showlegend=False
        )
        return html(
            figure, "throughput", "Speed of each worker", height=100 + min(34 * len(names), 720)
        )
    figure.add_scatter(
        x=rates,
        y=shares,
        mode="markers",
        marker={"color": BLUE, "opacity": 0.6},
        hovertext=names,
        hovertemplate="%{hovertext}: %{x:,.0f} tokens/s, busy %{y:.0f} %<extra></extra>",
    )
    figure.update_layout(
        xaxis={"title": "tokens per second"}, yaxis={"title": "busy, %"}, showlegend=False
    )
    return html(figure, "throughput", "Speed and busy share of each worker")


def timeline(runs: list[Run], attempts: list[Attempt]) -> str:
    """When each bucket was embedded, a line per worker; behind them the submissions' attempts,
    failed ones in red.
    """
    workers = {run.place: run.worker for run in runs}
    lines = sorted(
        {run.worker for run in runs} | {_line(one, workers) for one in attempts}, reverse=True
    )
    figure = go.Figure()
    for name, color, chosen in (
        ("attempt", "#D0D7DE", [one for one in attempts if one.outcome == "complete"]),
        ("attempt that failed", VERMILION, [one for one in attempts if one.outcome == "failed"]),
    ):
        if chosen:
            figure.add_bar(
                base=[_clock(one.started) for one in chosen],
                x=[1000 * max(one.seconds, 0.5) for one in chosen],
                y=[short(_line(one, workers), 24) for one in chosen],
                width=0.8,
                orientation="h",
                name=name,
                marker={"color": color},
                customdata=[
                    [one.submission, one.seconds, short(one.reason, 160)] for one in chosen
                ],
                hovertemplate="submission %{customdata[0]}: %{customdata[1]:,.0f} s "
                "%{customdata[2]}<extra></extra>",
            )
    ordered = sorted(runs, key=lambda run: run.started)
    figure.add_bar(
        base=[_clock(run.started) for run in ordered],
        x=[1000 * max(run.seconds, 0.5) for run in ordered],
        y=[short(run.worker, 24) for run in ordered],
        width=0.5,
        orientation="h",
        name="bucket",
        marker={
            "color": [BLUE if at % 2 else "#56B4E9" for at in range(len(ordered))],
            "line": {"width": 1, "color": "white"},
        },
        customdata=[[run.bucket, run.seconds, run.computed] for run in ordered],
        hovertemplate="bucket %{customdata[0]}: %{customdata[2]:,} sequences in "
        "%{customdata[1]:,.0f} s<extra></extra>",
    )
    open_ended = [one for one in attempts if one.outcome == "no end"]
    if open_ended:
        figure.add_scatter(
            x=[_clock(one.started) for one in open_ended],
            y=[short(_line(one, workers), 24) for one in open_ended],
            mode="markers",
            name="start without an end",
            marker={"symbol": "x", "color": VERMILION, "size": 9},
            hovertext=[one.submission for one in open_ended],
            hovertemplate="submission %{hovertext}: killed, or still at work<extra></extra>",
        )
    figure.update_layout(
        xaxis={"type": "date", "nticks": 4, "tickangle": 0},
        yaxis={"automargin": True, "showticklabels": len(lines) <= WORKERS_WITH_BARS},
        barmode="overlay",
    )
    height = 150 + min(34 * len(lines), 600)
    return html(
        figure, "timeline", "Buckets and attempts over time (UTC)", height, legend_above=True
    )


def _line(attempt: Attempt, workers: dict[str, str]) -> str:
    """Where an attempt is drawn: on the line of a worker of the same host and job, or on one of its
    own.
    """
    where = place(attempt.host, attempt.job)
    return workers.get(where, where)


def _clock(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def html(
    figure: go.Figure, name: str, title: str, height: int = 380, *, legend_above: bool = False
) -> str:
    """A heading and a div of its own; plotly.js comes with the page, once."""
    where = {"y": 1.02, "yanchor": "bottom"} if legend_above else {"y": -0.2, "yanchor": "top"}
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 40 if legend_above else 20, "b": 55},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
        legend={"orientation": "h", "x": 0} | where,
    )
    settings = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    div: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=settings
    )
    return f"<h3>{escape(title)}</h3>{div}"
