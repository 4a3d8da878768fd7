"""How `plm-embed watch` looks, on a terminal of any width and as plain text in a log."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from plm_embed.planning.costs import device_label
from plm_embed.reporting.closing import closing
from plm_embed.reporting.failures import AGAIN, alike
from plm_embed.reporting.screen.fitted_table import FittedTable
from plm_embed.reporting.screen.watch import Look, State
from plm_embed.reporting.screen.watch_steps import Status, Step
from plm_embed.reporting.screen.watch_workers import WorkerState
from plm_embed.wording import duration

MOST_ROWS = 100
"""Workers drawn at most, however tall the terminal: to draw a line costs more than to look."""
FEWEST_ROWS = 3
_MARKS: dict[Status, tuple[str, str]] = {
    "done": ("✓", "green"),
    "at work": ("▶", "bold cyan"),
    "failed": ("✗", "bold red"),
    "waits": ("·", "dim"),
}


def plain(look: Look) -> RenderableType:
    """Everything about a campaign, without bars and marks."""
    return Group(*_head(look, marks=False), *_workers(look.models, None))


def view(look: Look, console: Console) -> RenderableType:
    """As much about a campaign as the terminal takes: workers are left out first."""
    head = Group(*_head(look, marks=True))
    used = len(console.render_lines(head, pad=False)) + 3
    rows = min(MOST_ROWS, max(FEWEST_ROWS, console.size.height - used))
    return Group(head, *_workers(look.models, rows))


def _head(look: Look, *, marks: bool) -> Iterator[RenderableType]:
    """All but the workers."""
    alone = look.models[0].folder.name if len(look.models) == 1 else ""
    yield Text.assemble((f"{look.results}  {alone}".rstrip(), "bold"), f"  {_run(look)}")
    if not look.models:
        there = look.results.is_dir()
        yield Text(
            "Nothing has begun: no step has written anything here yet."
            if there
            else "There is no such folder yet."
        )
        return
    if len(look.models) > 1:
        yield _side_by_side(look.models)
    else:
        yield from _alone(look.models[0], marks)
    yield from _failures(look.models)
    if look.over and look.failed:
        yield Text(f"next: {AGAIN}")
    if look.finished:
        yield from map(Text, closing(look.results, [one.folder.name for one in look.models]))


def _run(look: Look) -> str:
    """Return how the campaign stands, in words."""
    if look.finished:
        return "finished: every step is done, and the result is validated"
    return "at work" if any(state.at_work for state in look.models) else "nothing is at work"


def _alone(state: State, marks: bool) -> Iterator[RenderableType]:
    """The campaign of one model: its steps, and the one that it is at."""
    yield _steps(state, marks)
    if state.finished:
        return
    step = _current(state)
    if marks and state.buckets and step.name == "embed":
        # by itself the bar ends without a new line
        yield Padding(ProgressBar(total=1.0, completed=state.fraction), 0)
    yield _embedding(state) if step.name == "embed" and state.buckets else _standing(step)


def _steps(state: State, marks: bool) -> Text:
    text = Text()
    for step in state.steps:
        mark, style = _MARKS[step.status]
        share = step.name == "embed" and state.buckets and step.status != "done"
        name = f"{step.name} {_percent(state.fraction)}" if share else step.name
        if marks:
            text.append(f"{mark}{name}", style).append(" ")
        else:
            text.append(f"{name} {step.status}" + ", " * (step is not state.steps[-1]))
    return text


def _current(state: State) -> Step:
    """The step to speak of: one that failed, one at work, or the first that is open."""
    open_ = [step for step in state.steps if step.status != "done"]
    for status in ("failed", "at work"):
        for step in open_:
            if step.status == status:
                return step
    return open_[0]


def _standing(step: Step) -> Text:
    """One line about a step other than embed."""
    if step.status == "failed":
        return Text(f"{step.name} failed", "bold red")
    if step.status == "waits":
        return Text(f"{step.name} has not begun")
    said = f": {step.last}" if step.last else ""
    return Text(f"{step.name} is at work, last word {duration(step.age)} ago{said}")


def _embedding(state: State) -> Text:
    workers = len(state.workers)
    line = Text(
        f"{state.done:,} of {state.buckets:,} buckets finished, {workers:,} "
        f"worker{'s' * (workers != 1)}, {state.queued:,} bucket{'s' * (state.queued != 1)} queued"
    )
    if state.starting:
        line.append(f" ({state.starting:,} job{'s' * (state.starting != 1)} starting)")
    if state.tokens_per_second:
        line.append(f", {state.tokens_per_second:,.0f} tokens/s")
    if troubled := sum(bool(worker.trouble) for worker in state.workers):
        line.append(f", {troubled:,} stalled", style="bold red")
    if state.failures:
        line.append(f", {len(state.failures):,} failed", style="bold red")
    return line.append(f"; {_when(state)}")


def _when(state: State) -> str:
    if state.eta is None:
        alive = any(not worker.trouble for worker in state.workers)
        return "no speed known yet" if alive else "no worker is at work"
    end = datetime.now() + timedelta(seconds=state.eta)
    return f"about {duration(state.eta)} left at this speed, until {end:%a %H:%M}"


def _side_by_side(states: Sequence[State]) -> FittedTable:
    """Several models, a line each."""
    table = FittedTable(
        ("model", "step", "embedded", "buckets", "workers", "queued", "tokens/s", "left", "failed"),
        ("queued", "buckets", "tokens/s", "workers", "left"),
    )
    for state in states:
        step = "finished" if state.finished else _name(_current(state))
        table.add(
            (
                state.folder.name,
                step,
                _percent(state.fraction),
                f"{state.done:,} of {state.buckets:,}" if state.buckets else "",
                f"{len(state.workers):,}",
                f"{state.queued:,}",
                f"{state.tokens_per_second:,.0f}",
                duration(state.eta) if state.eta else "",
                f"{len(state.failures):,}" if state.failures else "",
            ),
            "bold red" if state.failures else "",
        )
    return table


def _name(step: Step) -> str:
    return step.name if step.status == "at work" else f"{step.name} {step.status}"


def _failures(states: Sequence[State]) -> Iterator[RenderableType]:
    """Every cause once, with the log of the first step that it ended."""
    found = list(dict.fromkeys(failure for state in states for failure in state.failures))
    for same in alike(found):
        more = f"  and {len(same) - 1:,} more alike" if len(same) > 1 else ""
        yield Text.assemble(("FAILED ", "bold red"), (str(same[0].log), "bold"), more)
        yield Text("  " + same[0].reason.replace("\n", "\n  "))


def _workers(states: Sequence[State], rows: int | None) -> Iterator[RenderableType]:
    """All workers, or so many of them; those in trouble first."""
    found = [(state.folder.name, worker) for state in states for worker in state.workers]
    if not found:
        return
    found.sort(key=lambda one: not one[1].trouble)
    table = FittedTable(
        (
            *("worker", "job", "device", "model", "bucket", "done", "tokens/s", "left"),
            *("sequences", "memory", "load", "last sign", ""),
        ),
        ("memory", "sequences", "load", "device", "job", "left", "model", "tokens/s", "bucket"),
    )
    for model, worker in found[:rows]:
        cells = _cells(model if len(states) > 1 else "", worker)
        table.add(cells, "bold red" if worker.trouble else "")
    yield table
    if rows is not None and len(found) > rows:
        more = len(found) - rows
        some = f"and {more:,} worker{'s' * (more != 1)} more"
        yield Text(f"{some} (all of them: plm-embed watch --once)")


def _cells(model: str, worker: WorkerState) -> tuple[str, ...]:
    job, beat = worker.job, worker.worker
    rate, load, eta = beat.tokens_per_second, beat.utilization, job.eta_seconds
    return (
        job.host if beat.gpu is None else f"{job.host} GPU {beat.gpu}",
        job.job.partition(".")[0],
        device_label(beat.device)[:32],
        model,
        job.bucket,
        "loading" if rate is None else f"{100 * job.fraction:.0f} %",
        "" if rate is None else f"{rate:,.0f}",
        "" if eta is None else duration(eta),
        f"{beat.sequences:,}",
        f"{beat.memory_bytes / 1e9:.1f} GB",
        "" if load is None else f"{load} %",
        f"{duration(worker.age)} ago",
        worker.trouble.upper(),
    )


def _percent(fraction: float) -> str:
    """Rounded down: all of it is all of it."""
    return f"{math.floor(1000 * fraction) / 10:.1f} %"
