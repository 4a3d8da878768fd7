"""A plan on a terminal."""

from math import ceil

from rich.console import Console
from rich.table import Table
from rich.text import Text

from plm_embed.planning.plan import Plan
from plm_embed.wording import duration

WARNINGS = ("NOT ENOUGH", "not verified", "unpublished weights", "mean nothing")


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    for subject, words in plan.facts:
        text = Text(words)
        text.highlight_words(WARNINGS, "bold red")
        facts.add_row(subject, text)
    times = Table(box=None, pad_edge=False)
    times.add_column("model", overflow="fold")
    times.add_column("device")
    for title in ("tokens", "tokens/s", "time on one"):
        times.add_column(title, justify="right", no_wrap=True)
    for model in plan.models:
        for speed in model.speeds:
            tokens, rate = model.todo.tokens, speed.tokens_per_second
            numbers = f"{tokens:,}", f"{rate:,.0f}", duration(ceil(tokens / rate))
            times.add_row(model.model, speed.device, *numbers)
    console.print(facts, times, sep="\n")
    speeds = (speed for model in plan.models for speed in model.speeds)
    for basis in dict.fromkeys(f"{speed.device}: {speed.basis}" for speed in speeds):
        console.print(basis, style="dim", highlight=False, markup=False)
    console.print("\n[bold]run it[/]")
    console.print(f"  {plan.command}", soft_wrap=True, highlight=False, markup=False)
