"""Commands that show a campaign: before it is paid for, while it runs, and when it is done."""

import json
import sys
from pathlib import Path
from typing import Any

from click import UsageError, argument, command, option

from plm_embed._version import __version__
from plm_embed.cli.options import (
    EXISTING,
    FOLDER,
    PATH,
    PROFILE,
    RESULTS,
    log_command,
    optional,
    several,
)
from plm_embed.io.terminal import say


@command()
@argument("results", type=FOLDER, default=Path("results"))
@option("--once", is_flag=True, help="Print the state once as plain text, for logs and cron.")
def watch(results: Path, once: bool) -> None:
    """Follow a campaign to its validated end: steps, time left, workers, failures and their logs.

    It reads only small files of the results folder, so it runs wherever that folder is visible. It
    waits a minute for a run to start, and ends when the campaign does; Ctrl-C ends watch alone.
    Exit code: 0 validated, 1 failed, 3 unfinished.

    \b
    Example:
      plm-embed watch results
    """
    from plm_embed.reporting.watch import watch as run

    sys.exit(run(results, once=once))


@command()
@argument("more", nargs=-1, metavar="")
@option("--configfile", type=EXISTING, help="As for snakemake; else config/config.yaml.")
@several("--config", "settings", metavar="KEY=VALUE ...", help="Values of keys, as for snakemake.")
@PROFILE
@several(
    "--device", "devices", help="GPU to plan for, as A100, repeatable; else the profile's, or here."
)
def plan(*, more: tuple[str, ...], settings: tuple[str, ...], **options: Any) -> None:
    """Estimate what a campaign will cost before it runs.

    The plan shows what is in the input and what is left to compute, the time, a good number of
    buckets, the disk space, and the command.

    \b
    Example:
      plm-embed plan --configfile my_config.yaml --profile slurm --device H100
    """
    from plm_embed.io.terminal import terminal
    from plm_embed.planning import plan as planning

    if more and not settings:
        raise UsageError(f"Got unexpected extra argument ({more[0]})")
    plan = planning.plan(settings=(*settings, *more), **options)
    planning.show(plan, terminal(highlight=False))


@command()
@RESULTS
@option("--output", type=PATH, help="Write this HTML file alone, in place of those of the model.")
@optional("--settings", help="Configuration of the run, as JSON, to keep as config.yaml.")
def report(results: Path, output: Path | None, settings: str) -> None:
    """Write the report of a campaign, finished or not.

    It is one HTML file for each model, which needs neither network nor server. RESULTS is the
    folder of one model, or a results folder: then each of its models gets one, and comparison.html
    compares them. The same facts for machines go into ro-crate-metadata.json in the folder of the
    model, and the records without a vector into skipped.tsv, for spreadsheets.

    \b
    Example:
      plm-embed report results --output so_far.html
    """
    from plm_embed.reporting.comparison import COMPARISON, write_comparison
    from plm_embed.reporting.facts import collect, model_folders
    from plm_embed.reporting.outputs import CONFIG, RECORDS, REPORT, SKIPPED, write_skipped
    from plm_embed.reporting.report import write_report
    from plm_embed.reporting.ro_crate import write_crate
    from plm_embed.workflow.config import write_kept

    if settings:  # in a step of the workflow
        log_command()
    models = []
    for folder in [results] if output else model_folders(results) or [results]:
        facts = collect(folder)
        models.append(facts)
        page, records = output or facts.folder / REPORT, facts.folder / RECORDS
        if settings:
            title = f"The configuration that plm-embed {__version__} ran with, defaults included."
            write_kept(facts.folder / CONFIG, json.loads(settings), title)
        if records.is_file() and not output:
            write_skipped(records, facts.folder / SKIPPED)
        write_report(facts, page)
        if not output:
            write_crate(facts)
        say(f"{page}: open it in a browser")
    page = results / COMPARISON
    if len(models) > 1 and write_comparison(models, page):
        say(f"{page}: compares the models")


@command()
@RESULTS
def summary(results: Path) -> None:
    """Say what a campaign has produced and how to open it.

    \b
    Example:
      plm-embed summary results
    """
    from plm_embed.reporting.summary import gathered, summarize

    say(summarize(gathered(results)))
