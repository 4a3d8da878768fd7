"""Commands that show a campaign: before it is paid for, while it runs, and when it is done."""

from pathlib import Path

import click

EXISTING = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("results", type=EXISTING, default=Path("results"))
@click.option("--once", is_flag=True, help="Print one look at the campaign as plain text, for logs and cron.")
def watch(results: Path, once: bool) -> None:
    """Show a running campaign: progress, time left, every worker, what failed and where its log is.

    Reads only small files of the results folder, so it runs anywhere that sees the folder. Ctrl-C ends it, and nothing
    else.

    \b
    Example:
      plm-embed watch results
    """
    from plm_embed.watch_view import watch as run

    run(results, once=once)


COMMANDS = (watch,)
