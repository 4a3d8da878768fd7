"""How `plm-embed watch` looks on a terminal, and as plain text in a log."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plm_embed.io.console import Terminal
from plm_embed.planning.costs import device_label
from plm_embed.reporting.watch import State, Watch, WorkerState
from plm_embed.wording import duration

SECONDS_BETWEEN_LOOKS = 10.0
"""As often as workers write their heartbeats."""
PLAIN_WIDTH = 120
MOST_ROWS = 100
"""Workers drawn at most, however tall the terminal: to draw a line costs more than to look."""


def watch(results: Path, *, once: bool) -> None:
    """Show the campaign until all its models are validated or Ctrl-C; with `once`, print one look
    at it as plain text.
    """
    looker = Watch(results)
    if once:
        console = Terminal(width=PLAIN_WIDTH, no_color=True, highlight=False)
        console.print(view(looker.look(), rows=None, plain=True))
        return
    console = Terminal()
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            states = looker.look()
            live.update(
                view(states, rows=min(MOST_ROWS, max(3, console.size.height - 10))), refresh=True
            )
            if states and all(state.finished for state in states):
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)


def view(states: Sequence[State], *, rows: int | None, plain: bool = False) -> RenderableType:
    """Everything about the models, with at most `rows` lines of workers in all; several of them
    first side by side.
    """
    if not states:
        return Text(
            "Nothing is embedded yet: the sequences are being read, or jobs wait in the queue."
        )
    parts = [part for state in states for part in _campaign(state, _share(rows, states), plain)]
    return Group(*([_side_by_side(states)] if len(states) > 1 else []), *parts)


def _share(rows: int | None, states: Sequence[State]) -> int | None:
    """Lines for one of the models that have workers."""
    return rows and max(1, rows // max(1, sum(bool(state.workers) for state in states)))


def _side_by_side(states: Sequence[State]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for title in ("done", "buckets", "workers", "queued", "tokens/s", "left", "failed"):
        table.add_column(title, justify="right", no_wrap=True)
    for state in states:
        table.add_row(
            state.folder.name,
            f"{100 * state.fraction:.1f} %",
            f"{state.done:,} of {state.buckets:,}",
            f"{len(state.workers):,}",
            f"{state.queued:,}",
            f"{state.tokens_per_second:,.0f}",
            _left(state),
            f"{len(state.failures):,}" if state.failures else "",
            style="bold red" if state.failures else "",
        )
    return table


def _left(state: State) -> str:
    if state.finished:
        return "finished"
    if state.embedded:
        return "the proof"
    return "?" if state.eta is None else duration(state.eta)


def _campaign(state: State, rows: int | None, plain: bool) -> list[RenderableType]:
    head = Text.assemble(
        (str(state.folder), "bold"), f"  {100 * state.fraction:.1f} %  {_when(state)}"
    )
    counts = [
        f"{state.done:,} of {state.buckets:,} buckets finished",
        f"{len(state.workers):,} workers",
    ]
    counts += [
        f"{state.queued:,} bucket{'s' * (state.queued != 1)} queued",
        f"{state.tokens_per_second:,.0f} tokens/s",
    ]
    line = Text(", ".join(counts))
    troubled = sum(bool(worker.trouble) for worker in state.workers)
    if troubled:
        line.append(f", {troubled:,} stalled", style="bold red")
    if state.failures:
        line.append(f", {len(state.failures):,} failed", style="bold red")
    parts: list[RenderableType] = [head]
    if not plain:
        parts.append(ProgressBar(total=1.0, completed=state.fraction))
    parts.append(line)
    if state.workers:
        parts.append(_table(state.workers if rows is None else state.workers[:rows]))
    if rows is not None and len(state.workers) > rows:
        parts.append(
            Text(
                f"and {len(state.workers) - rows:,} workers more (all of them: plm-embed watch "
                "--once)"
            )
        )
    for failure in state.failures[:rows]:
        parts.append(Text.assemble(("FAILED ", "bold red"), (str(failure.log), "bold")))
        parts.append(Text("  " + failure.reason.replace("\n", "\n  ")))
    return parts


def _when(state: State) -> str:
    if state.finished:
        return "finished"
    if state.embedded:
        return "embedded; master and proof are not finished"
    if state.eta is None:
        alive = any(not worker.trouble for worker in state.workers)
        return "no speed known yet" if alive else "no worker is at work"
    end = datetime.now() + timedelta(seconds=state.eta)
    return f"about {duration(state.eta)} left at this speed, until {end:%a %H:%M}"


def _table(workers: Sequence[WorkerState]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("worker", no_wrap=True)
    for title in (
        "bucket",
        "done",
        "tokens/s",
        "left",
        "sequences",
        "memory",
        "load",
        "last sign",
        "",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for worker in workers:
        beat = worker.beat
        place = beat.host if beat.gpu is None else f"{beat.host} GPU {beat.gpu}"
        rate, load, eta = beat.tokens_per_second, beat.utilization, beat.eta_seconds
        table.add_row(
            f"{place} ({device_label(beat.device)})"[:48],
            beat.bucket,
            "loading" if beat.tokens_total is None else f"{100 * beat.fraction:.0f} %",
            "" if rate is None else f"{rate:,.0f}",
            "" if eta is None else duration(eta),
            f"{beat.sequences:,}",
            f"{beat.memory_bytes / 1e9:.1f} GB",
            "" if load is None else f"{load} %",
            f"{duration(worker.age)} ago",
            worker.trouble.upper(),
            style="bold red" if worker.trouble else "",
        )
    return table
