"""How a plan looks on a terminal."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plm_embed.planning.costs import Work
from plm_embed.planning.forecast import Plan
from plm_embed.planning.proposals import Proposal, together
from plm_embed.wording import duration, readable

BAR = 40
BINS = 12
LARGE_HOURS = 8.0
"""GPU-hours from which on it matters how many GPUs work at a time."""
GPUS_AT_A_TIME = 8, 64


def show(plans: Sequence[Plan], console: Console) -> None:
    """Print the plans of the models of a campaign."""
    first = plans[0]
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(first) if len(plans) == 1 else _shared_facts(plans):
        facts.add_row(f"[bold]{name}[/]", value)
    console.print(facts)
    console.print("\n[bold]lengths[/] of the unique sequences, in residues")
    for line in histogram(first.lengths):
        console.print(f"  {line}", highlight=False)
    if len(plans) > 1:
        console.print("\n[bold]models[/], and what each has to compute")
        console.print(_models(plans))
    console.print("\n[bold]time[/] of one device at work")
    console.print(_times(first) if len(plans) == 1 else _times_of_models(plans))
    for note in dict.fromkeys(_notes(plans)):
        console.print(f"  [dim]{escape(note)}[/]")
    local = [plan.local_hours for plan in plans if plan.local_hours is not None]
    if len(local) == len(plans):
        others = "" if first.site else "; other GPUs: --gpus all; a cluster: --site NAME"
        console.print(f"\nOn this machine alone: about {_hours(sum(local))} to embed{others}.")
    if "--profile" in first.command:
        devices = ", ".join(dict.fromkeys(plan.device for plan in plans))
        of_all = f", of all {len(plans)} models" if len(plans) > 1 else ""
        console.print(
            "\n[bold]submissions[/]"
            + (f" at {first.site}" if first.site else "")
            + (f" ({first.recognized})" if first.recognized else "")
            + f", planned for {devices}{of_all}"
        )
        console.print(_submissions([together(*one) for one in _ways(plans)]))
        console.print(
            "  [dim]max: in the queue at a time; size: nodes x GPUs of a job; limit: walltime, in "
            "hours; waste: of the GPU-hours paid[/]",
        )
        for line in _remarks(plans):
            console.print(f"  {line}")
    console.print("\n[bold]bytes[/]")
    bytes_ = _bytes(plans)
    total = sum(bytes_.values())
    sizes = ", ".join(f"{name} {readable(size)}" for name, size in bytes_.items())
    room = "enough" if first.free_bytes > total else "[bold red]NOT ENOUGH[/]"
    console.print(
        f"  {sizes}; {readable(total)} in all; {readable(first.free_bytes)} free: {room}",
    )
    console.print(f"  files: about {sum(plan.files for plan in plans):,}")
    console.print("\n[bold]run it[/]" + (f", with {first.missing}" if first.missing else ""))
    console.print("  " + shlex.join(first.command), soft_wrap=True, highlight=False, markup=False)


def _notes(plans: Sequence[Plan]) -> Iterator[str]:
    """Where the numbers are from that the plan goes by: of its device, of what was measured, and
    why one is not known.
    """
    for plan in plans:
        for forecast in plan.forecasts:
            speed = forecast.speed
            if speed.device == plan.device or speed.here or speed.basis != "estimated":
                model = f"{plan.model}, " if len(plans) > 1 else ""
                yield f"{model}{speed.device}: {speed.why}"


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "model", plan.model
    yield "weights", _weights(plan)
    yield from _input(plan)
    yield "already there", _spared(plan)
    yield (
        "to compute",
        f"{plan.todo.sequences:,} sequences, {plan.todo.tokens:,} tokens, "
        f"{plan.todo.flops:.3g} FLOP",
    )


def _shared_facts(plans: Sequence[Plan]) -> Iterator[tuple[str, str]]:
    yield from _input(plans[0])
    for plan in plans:
        yield plan.model, _weights(plan)
        yield "", f"already there: {_spared(plan)}"


def _input(plan: Plan) -> Iterator[tuple[str, str]]:
    skipped = plan.records - plan.accepted
    yield "records", f"{plan.records:,}, {skipped:,} of them skipped ({plan.counted})"
    yield "unique", f"{plan.unique:,} sequences, {plan.residues:,} residues"


def _weights(plan: Plan) -> str:
    return plan.weights if plan.verified else f"[bold red]{escape(plan.weights)}[/]"


def _models(plans: Sequence[Plan]) -> Table:
    """Sequences, tokens, operations and bytes: a row for each model, and their sums."""
    table = Table(box=None, pad_edge=True)
    table.add_column("model", no_wrap=True)
    for title in ("sequences", "tokens", "FLOP", "bytes"):
        table.add_column(title, justify="right", no_wrap=True)
    own = [sum(plan.bytes.values()) - plan.bytes.get("sequences", 0) for plan in plans]
    rows = [(plan.model, plan.todo, size) for plan, size in zip(plans, own, strict=True)]
    todos = [plan.todo for plan in plans]
    whole = Work(
        sum(todo.sequences for todo in todos),
        sum(todo.tokens for todo in todos),
        sum(todo.flops for todo in todos),
    )
    for name, todo, size in [*rows, ("all", whole, sum(_bytes(plans).values()))]:
        cells = f"{todo.sequences:,}", f"{todo.tokens:,}", f"{todo.flops:.3g}", readable(size)
        table.add_row(name, *cells)
    return table


def _bytes(plans: Sequence[Plan]) -> dict[str, int]:
    """Of all models; they share the sequences."""
    found: dict[str, int] = {}
    for plan in plans:
        for name, size in plan.bytes.items():
            found[name] = size if name == "sequences" else found.get(name, 0) + size
    return found


def _ways(plans: Sequence[Plan]) -> Iterator[tuple[Proposal, ...]]:
    """The submissions of all models, which are cut alike, by queue."""
    yield from zip(*(plan.proposals for plan in plans), strict=True)


def histogram(lengths: Mapping[int, int]) -> Iterator[str]:
    """Lines of a histogram in equal steps of the logarithm: range, bar, count."""
    if not lengths:
        yield "nothing"
        return
    low, high = min(lengths), max(lengths) + 1
    count = min(BINS, high - low)
    edges = sorted({round(low * (high / low) ** (i / count)) for i in range(count + 1)})
    counts = [
        sum(n for length, n in lengths.items() if a <= length < b) for a, b in pairwise(edges)
    ]
    width, most = len(f"{edges[-1]:,}"), max(counts)
    for (start, end), found in zip(pairwise(edges), counts, strict=True):
        eighths = math.ceil(8 * BAR * found / most)
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        yield f"{start:>{width},} - {end - 1:>{width},}  {bar:<{BAR}} {found:,}"


def _spared(plan: Plan) -> str:
    if plan.stored is None:
        return "nothing with these settings"
    return f"{plan.stored:,} in the store" + (
        f", {plan.reused:,} in earlier results" if plan.reused else ""
    )


def _times(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=True)
    table.add_column("device")
    table.add_column("tokens/s", justify="right")
    table.add_column("time", justify="right")
    table.add_column("basis")
    for forecast in plan.forecasts:
        speed = forecast.speed
        table.add_row(
            speed.device,
            f"{speed.tokens_per_second:,.0f}" if speed.tokens_per_second else "?",
            _known_hours([forecast.hours]),
            f"{speed.basis}: {speed.how}" if speed.how else speed.basis,
        )
    return table


def _times_of_models(plans: Sequence[Plan]) -> Table:
    """Hours: a row for each model, a column for each device, and their sums."""
    devices = list(dict.fromkeys(one.speed.device for plan in plans for one in plan.forecasts))
    table = Table(box=None, pad_edge=True)
    table.add_column("model", no_wrap=True)
    for device in devices:
        table.add_column(device, justify="right")
    found = [{one.speed.device: one.hours for one in plan.forecasts} for plan in plans]
    for plan, hours in zip(plans, found, strict=True):
        table.add_row(plan.model, *(_known_hours([hours.get(device)]) for device in devices))
    table.add_row(
        "all", *(_known_hours([hours.get(device) for hours in found]) for device in devices)
    )
    return table


def _known_hours(each: Sequence[float | None]) -> str:
    """The sum; a question mark where one of them is not known."""
    known = [hours for hours in each if hours is not None]
    return _hours(sum(known)) if len(known) == len(each) else "?"


def _remarks(plans: Sequence[Plan]) -> Iterator[str]:
    """Why the command sets buckets, and when all of a large campaign is done."""
    first = together(*next(iter(_ways(plans))))
    if any(word == f"buckets={first.buckets}" for word in plans[0].command):
        takes = duration(3600 * first.hours_each)
        yield f"buckets={first.buckets}: a job then takes {takes}, and is worth its wait"
    work = (1 - first.wasted) * first.charged_hours
    if work > LARGE_HOURS:
        most = first.submissions * first.nodes * first.gpus_per_node
        numbers = [*(number for number in GPUS_AT_A_TIME if number < most), most]
        times = ", ".join(f"{duration(3600 * work / n)} with {n:,}" for n in numbers)
        yield f"done after about {times} GPUs at a time"


def _submissions(ways: Sequence[Proposal]) -> Table:
    table = Table(box=None, pad_edge=True)
    limited = any(one.jobs_at_once for one in ways)
    for title in (
        *("queue", "jobs", *(["max"] if limited else [])),
        *("size", "buckets", "limit", "takes", "node-h", "waste"),
    ):
        table.add_column(title, justify="left" if title == "queue" else "right", no_wrap=True)
    for one in ways:
        table.add_row(
            one.queue + ": too short" * (not one.fits) + ": preempts" * one.preempts,
            f"{one.submissions:,}",
            *([f"{one.jobs_at_once:,}" if one.jobs_at_once else ""] if limited else []),
            f"{one.nodes} x {one.gpus_per_node}",
            f"{one.buckets:,}",
            f"{one.walltime_minutes // 60}:{one.walltime_minutes % 60:02d}",
            duration(3600 * one.hours_each),
            f"{one.node_hours:,.2f}",
            f"{100 * one.wasted:.0f} %",
        )
    return table


def _hours(hours: float) -> str:
    return (
        f"{hours:,.1f} h"
        if hours >= 10
        else f"{hours:.2f} h"
        if hours >= 0.1
        else duration(3600 * hours)
    )
