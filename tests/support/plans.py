"""A plan of one model, and what is shown of it."""

from pathlib import Path

from rich.console import Console

from plm_embed.planning import plan
from plm_embed.planning.forecast import Plan
from plm_embed.planning.plan_view import show

DEMO = Path(__file__).parents[2] / "config" / "demo"


def planned(question: plan.Question) -> Plan:
    """The plan of a campaign of one model."""
    (found,) = plan.plan(question)
    return found


def text(*found: Plan) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        show(found, console)
    return capture.get()
