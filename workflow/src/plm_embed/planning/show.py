"""A plan on a terminal."""

from collections.abc import Iterator
from itertools import accumulate

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plm_embed.planning.costs import gpu_table
from plm_embed.planning.plan import STARTUP_HOURS, Plan
from plm_embed.wording import count, duration, readable


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(plan):
        facts.add_row(name, value)
    times = Table(box=None, pad_edge=False)
    times.add_column("model", overflow="fold")
    times.add_column("device")
    for title in ("tokens", "tokens/s", "time on one"):
        times.add_column(title, justify="right", no_wrap=True)
    sources: dict[str, None] = {}
    for model in plan.models:
        for speed in model.speeds:
            seconds = model.todo.tokens / speed.tokens_per_second
            time = _time(seconds) if model.todo.tokens else ""
            numbers = f"{model.todo.tokens:,}", f"{speed.tokens_per_second:,.0f}", time
            times.add_row(model.model, speed.device, *numbers)
            sources[f"{speed.device}: {speed.basis}".lstrip(": ")] = None
    with console.capture() as tables:
        console.print(facts, times, sep="\n")
    for line in tables.get().splitlines():  # cells end in blanks
        console.out(line.rstrip(), highlight=False)
    for source in sources:
        console.print(source, style="dim", highlight=False, markup=False)
    here = plan.jobs.local or plan.jobs.minutes  # else no profile is named, but a device
    where = "" if here else f" on the machine with the {plan.models[0].speeds[0].device}"
    console.print(f"\n[bold]run it{escape(where)}[/]")
    console.print(f"  {plan.command}", soft_wrap=True, highlight=False, markup=False)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    read = plan.input
    skipped = read.records - read.accepted
    yield "records", f"{read.records:,}, {skipped:,} of them skipped ({escape(read.counted)})"
    words = f"{count(read.unique, 'sequence')}, {count(read.residues, 'residue')}"
    if lengths := sorted(read.lengths):
        ranks = accumulate(read.lengths[length] for length in lengths)
        middle = next(n for n, rank in zip(lengths, ranks, strict=True) if 2 * rank >= read.unique)
        words += f" ({lengths[0]:,} to {lengths[-1]:,} each, median {middle:,})"
    yield "unique", words
    for model in plan.models:
        words = escape(model.weights)
        yield "weights", f"{model.model}: " + (words if model.verified else f"[bold red]{words}[/]")
        if model.passes > 1:
            factor = f"{model.passes:,.0f} times the work of the vectors"
            yield "pseudo_perplexity", f"{model.model}: each residue is masked once: {factor}"
        if model.too_long:
            words = f"{model.too_long:,} of more than {model.longest:,} residues get no vector"
            yield "too long", f"{model.model}: {words}"
        if model.stored:
            stored = f"{model.stored:,} of {count(read.unique, 'sequence')} already"
            yield "stored", f"{model.model}: {stored}"
    yield "jobs", _jobs(plan)
    total = sum(plan.bytes.values())
    sizes = ", ".join(f"{name} {readable(size)}" for name, size in plan.bytes.items() if size)
    room = "enough" if plan.free_bytes > total else "[bold red]NOT ENOUGH[/]"
    yield "bytes", f"{sizes}; {readable(total)} in all, {readable(plan.free_bytes)} free: {room}"


def _jobs(plan: Plan) -> str:
    jobs, hours = plan.jobs, sum(model.hours for model in plan.models)
    if not hours:
        return "nothing to compute"
    unit = "GPU" if plan.models[0].speeds[0].device in gpu_table()["gpus"] else "worker"
    models = f" for each of {len(plan.models)} models" if len(plan.models) > 1 else ""
    workers = f" on {jobs.workers:,} {unit}s" if jobs.workers > 1 else ""
    now = f", not {jobs.configured}" if jobs.configured != jobs.buckets else ""
    words = f"buckets={jobs.buckets}{now}{models}: {_time(3600 * jobs.hours)}{workers} each"
    if jobs.local:
        return f"{words}; {_time(3600 * hours / jobs.workers / jobs.local)} in all on this machine"
    words += f", and up to {duration(3600 * STARTUP_HOURS)} to start"
    if jobs.minutes:
        words += f"; the profile gives each {duration(60 * jobs.minutes)}"
    return f"{words}; {_time(3600 * hours)} on one {unit} in all"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else "under 1 s"
