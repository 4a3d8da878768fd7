"""A plan on a terminal."""

from rich.console import Console, RenderableType
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
    bases: dict[str, RenderableType] = {}
    for model in plan.models:
        for speed in model.speeds:
            time = duration(speed.seconds(model.todo)) if model.todo.tokens else "nothing left"
            numbers = f"{model.todo.tokens:,}", f"{speed.tokens_per_second:,.0f}", time
            times.add_row(model.model, speed.device, *numbers)
            basis = f"{speed.device}: {speed.basis}"
            bases[basis] = Text(basis, style="dim")
    for part in (facts, *([times] if bases else []), *bases.values()):
        for line in console.render_lines(part, pad=False):
            text = Text.assemble(*((piece.text, piece.style or "") for piece in line))
            text.rstrip()  # rich fills the lines of a table
            console.print(text, soft_wrap=True)
    console.print("\n[bold]run it[/]")
    console.print(f"  {plan.command}", soft_wrap=True, highlight=False, markup=False)
