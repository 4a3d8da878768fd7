"""How a plan looks on a terminal."""

import math
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plm_embed.planning.forecast import Plan
from plm_embed.wording import duration, readable

BAR = 40
BINS = 12


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in (
        ("model", plan.model),
        ("weights", plan.weights if plan.verified else f"[bold red]{escape(plan.weights)}[/]"),
        (
            "records",
            f"{plan.records:,}, {plan.records - plan.accepted:,} of them skipped ({plan.counted})",
        ),
        ("unique", f"{plan.unique:,} sequences, {plan.residues:,} residues"),
        ("not computed", _spared(plan)),
        (
            "to compute",
            f"{plan.todo.sequences:,} sequences, {plan.todo.tokens:,} tokens, "
            f"{plan.todo.flops:.3g} FLOP",
        ),
    ):
        facts.add_row(f"[bold]{name}[/]", value)
    console.print(facts)
    console.print("\n[bold]lengths[/] of the unique sequences, in residues")
    for line in histogram(plan.lengths):
        console.print(f"  {line}", highlight=False)
    console.print("\n[bold]time[/] of one device at work")
    console.print(_times(plan))
    for forecast in plan.forecasts:
        console.print(f"  [dim]{forecast.speed.device}: {forecast.speed.why}[/]", soft_wrap=True)
    if plan.local_hours is not None:
        console.print(f"\nOn this machine alone: about {_hours(plan.local_hours)} to embed.")
    if "--profile" in plan.command:
        console.print(
            "\n[bold]submissions[/]"
            + (f" at {plan.site}" if plan.site else "")
            + (f" ({plan.recognized})" if plan.recognized else "")
            + f", planned for {plan.device}"
        )
        console.print(_submissions(plan))
        console.print(
            "  [dim]max: in the queue at a time; size: nodes x GPUs of a job; limit: walltime, in "
            "hours; "
            "waste: of the GPU-hours paid[/]",
            soft_wrap=True,
        )
    console.print("\n[bold]bytes[/]")
    total = sum(plan.bytes.values())
    sizes = ", ".join(f"{name} {readable(size)}" for name, size in plan.bytes.items())
    room = "enough" if plan.free_bytes > total else "NOT ENOUGH"
    console.print(
        f"  {sizes}; {readable(total)} in all; {readable(plan.free_bytes)} free: {room}",
        soft_wrap=True,
    )
    console.print("\n[bold]run it[/]" + (f", with {plan.missing}" if plan.missing else ""))
    console.print("  " + shlex.join(plan.command), soft_wrap=True, highlight=False, markup=False)


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
        return "nothing that is stored has these settings yet"
    return f"{plan.stored:,} are in the store" + (
        f", {plan.reused:,} in earlier results" if plan.reused else ""
    )


def _times(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=True)
    table.add_column("device")
    table.add_column("tokens/s", justify="right")
    table.add_column("hours", justify="right")
    table.add_column("basis")
    for forecast in plan.forecasts:
        speed = forecast.speed
        table.add_row(
            speed.device,
            f"{speed.tokens_per_second:,.0f}" if speed.tokens_per_second else "?",
            "?" if forecast.hours is None else _hours(forecast.hours),
            speed.basis,
        )
    return table


def _submissions(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=True)
    for title in ("queue", "jobs", "max", "size", "buckets", "limit", "takes", "node-h", "waste"):
        table.add_column(title, justify="left" if title == "queue" else "right", no_wrap=True)
    for one in plan.proposals:
        table.add_row(
            one.queue if one.fits else f"{one.queue}: too short",
            f"{one.submissions:,}",
            f"{one.jobs_at_once:,}" if one.jobs_at_once else "",
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
