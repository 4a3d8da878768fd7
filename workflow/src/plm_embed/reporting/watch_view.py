"""`plm-embed watch`: a campaign on a terminal of any width, or as plain text in a log."""

import math
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plm_embed.io.console import Terminal
from plm_embed.planning.costs import device_label
from plm_embed.program import program
from plm_embed.reporting.closing import closing
from plm_embed.reporting.failures import AGAIN, alike
from plm_embed.reporting.watch import Look, State, Status, Step, Watch, WorkerState
from plm_embed.wording import duration

SECONDS_BETWEEN_LOOKS = 10.0
"""Workers write their heartbeats as often."""
PLAIN_WIDTH = 120
MOST_ROWS = 100
"""Workers drawn at most, however tall the terminal: to draw a line costs more than to look."""
FEWEST_ROWS = 3
VALID, FAILED, UNFINISHED = 0, 1, 3
_MARKS: dict[Status, tuple[str, str]] = {
    "done": ("✓", "green"),
    "at work": ("▶", "bold cyan"),
    "failed": ("✗", "bold red"),
    "waits": ("·", "dim"),
}
_COLUMNS = {
    "worker": 0,
    "model": 100,
    "bucket": 60,
    "device": 110,
    "job": 90,
    "done": 0,
    "tokens/s": 75,
    "left": 85,
    "memory": 120,
    "load": 120,
    "last sign": 0,
    "": 0,
}
"""Columns of the table of workers, and the narrowest terminal that shows each."""


def watch(results: Path, *, once: bool) -> int:
    """Show the campaign until it is over or Ctrl-C; with `once`, print one look at it as plain
    text. Return the exit code: VALID, FAILED or UNFINISHED.
    """
    watched = Watch(results)
    look = watched.look()
    if once:
        console = Terminal(width=PLAIN_WIDTH, no_color=True, highlight=False)
        console.print(view(look, console, rows=None))
    else:
        console = Terminal()
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            try:
                live.update(view(look, console), refresh=True)
                while not look.over:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    look = watched.look()
                    live.update(view(look, console), refresh=True)
            except KeyboardInterrupt:
                pass
    return VALID if look.finished else FAILED if look.failed else UNFINISHED


def view(look: Look, console: Console, rows: int | None = 0) -> RenderableType:
    """Return a look as the console can take it. rows: workers to show; 0: as many as its height
    takes, None: all of them, and no bars.
    """
    head = Group(*_head(look, bars=rows is not None))
    if rows == 0:
        used = len(console.render_lines(head, pad=False)) + 3
        rows = min(MOST_ROWS, max(FEWEST_ROWS, console.size.height - used))
    return Group(head, *_workers(look, rows, console.width))


def _head(look: Look, *, bars: bool) -> Iterator[RenderableType]:
    at_work = any(state.at_work for state in look.models)
    words = "at work" if at_work else "nothing is at work"
    if look.finished:
        words = "finished: every step is done, and the result is validated"
    yield Text.assemble((str(look.results), "bold"), f"  {words}")
    if not look.models:
        there = look.results.is_dir()
        yield Text("Nothing has begun yet." if there else "There is no such folder yet.")
    for state in look.models:
        marks = [
            Text("".join((mark, step.name)), style) if bars else Text(f"{step.name} {step.status}")
            for step, (mark, style) in ((step, _MARKS[step.status]) for step in state.steps)
        ]
        steps = Text(" " if bars else ", ").join(marks)
        yield Text.assemble((state.folder.name, "bold"), "  ", steps)
        if not state.finished:
            yield from _progress(state, bars)
    failures = dict.fromkeys(failure for state in look.models for failure in state.failures)
    for same in alike(list(failures)):
        more = f"  and {len(same) - 1:,} more alike" if len(same) > 1 else ""
        yield Text.assemble(("FAILED ", "bold red"), (str(same[0].log), "bold"), more)
        yield Text("  " + same[0].reason.replace("\n", "\n  "))
    if look.over and look.failed:
        yield Text(f"next: {AGAIN}")
    if look.finished:
        yield from map(Text, closing(look.results, [state.folder.name for state in look.models]))


def _progress(state: State, bars: bool) -> Iterator[RenderableType]:
    """A bar and numbers while buckets are embedded, else a line about the step that it is at."""
    current = [step for step in state.steps if step.status != "done"]
    order = ("failed", "at work", "waits")
    step = min(current, key=lambda one: order.index(one.status))
    if not state.buckets or step.name != "embed":
        yield _standing(step)
        return
    if bars:
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column()
        share = _percent(state.fraction)
        line.add_row(ProgressBar(total=1.0, completed=state.fraction), share)
        yield line
    counts = f"{state.done:,} of {state.buckets:,} buckets done, {state.running:,} at work, "
    text = Text(counts + f"{state.queued:,} queued")
    if state.failures:
        text.append(f", {len(state.failures):,} failed", style="bold red")
    if stalled := sum(bool(worker.trouble) for worker in state.workers):
        text.append(f", {stalled:,} worker{'s' * (stalled > 1)} stalled", style="bold red")
    text.append("" if bars else f"; {_percent(state.fraction)}")
    if state.eta is None:
        yield text.append("; no speed known yet" if state.running else "; no worker is at work")
        return
    end = datetime.now() + timedelta(seconds=state.eta)
    text.append(f"; {state.tokens_per_second:,.0f} tokens/s")
    yield text.append(f", about {duration(state.eta)} left, until {end:%a %H:%M}")


def _standing(step: Step) -> Text:
    if step.status == "failed":
        return Text(f"{step.name} failed", "bold red")
    if step.status == "waits":
        return Text(f"{step.name} has not begun")
    last = f": {step.last}" if step.last else ""
    return Text(f"{step.name} is at work, last line {duration(step.age)} ago{last}")


def _workers(look: Look, rows: int | None, width: int) -> Iterator[RenderableType]:
    """The table of workers, those in trouble first: all of them, or so many."""
    found = [(state.folder.name, worker) for state in look.models for worker in state.workers]
    if not found:
        return
    found.sort(key=lambda one: not one[1].trouble)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [_cells(model, worker) for model, worker in found[:rows]]
    shown = [
        title
        for title, least in _COLUMNS.items()
        if width >= least
        and any(row[title] for row in cells)
        and (title != "model" or len(look.models) > 1)
    ]
    for title in shown:
        justify = "left" if title == "worker" else "right"
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for (_, worker), row in zip(found, cells, strict=False):
        style = "bold red" if worker.trouble else ""
        table.add_row(*(row[title] for title in shown), style=style)
    yield table
    if len(found) > len(cells):
        yield Text(f"and {len(found) - len(cells):,} more workers: {program()} watch --once")


def _cells(model: str, worker: WorkerState) -> dict[str, str]:
    job, beat = worker.job, worker.worker
    rate, load, eta = beat.tokens_per_second, beat.utilization, job.eta_seconds
    return {
        "worker": job.host if beat.gpu is None else f"{job.host} GPU {beat.gpu}",
        "model": model,
        "bucket": job.bucket,
        "device": device_label(beat.device)[:32],
        "job": job.job.partition(".")[0],
        "done": "loading" if rate is None else f"{100 * job.fraction:.0f} %",
        "tokens/s": "" if rate is None else f"{rate:,.0f}",
        "left": "" if eta is None else duration(eta),
        "memory": f"{(beat.memory_bytes or 0) / 1e9:.1f} GB",
        "load": "" if load is None else f"{load} %",
        "last sign": f"{duration(worker.age)} ago",
        "": worker.trouble.upper(),
    }


def _percent(fraction: float) -> str:
    """Rounded down: all of it is all of it."""
    return f"{math.floor(1000 * fraction) / 10:.1f} %"
