"""Commands that show a campaign: before it is paid for, while it runs, and when it is done."""

import json
import sys
from pathlib import Path

import click

from plm_embed.cli.options import EXISTING, PATH, Columnar, ColumnarStep
from plm_embed.io.terminal import say


@click.command()
@click.argument("results", type=PATH, default=Path("results"))
@click.option(
    "--once", is_flag=True, help="Print one look at the campaign as plain text, for logs and cron."
)
def watch(results: Path, once: bool) -> None:
    """Follow a campaign to its validated end: steps, time left, workers, failures and their logs.

    It reads only small files of the results folder, so it runs anywhere that sees the folder, and
    the folder need not be there yet. Ctrl-C ends it, and nothing else. It ends by itself when the
    campaign does. Exit code: 0 validated, 1 failed, 3 unfinished.

    \b
    Example:
      plm-embed watch results
    """
    from plm_embed.reporting.screen.watch_loop import watch as run

    sys.exit(run(results, once=once))


@click.command(cls=Columnar)
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--configfile",
    type=EXISTING,
    help="Configuration of the campaign, as for snakemake; without it, config/config.yaml.",
)
@click.option(
    "--config",
    "settings",
    multiple=True,
    metavar="KEY=VALUE ...",
    help="Other values for keys of the configuration, as for snakemake.",
)
@click.option(
    "--site",
    default="",
    help="polaris, perlmutter; slurm: what sinfo says here; or a "
    "YAML file like executors/pbs has. "
    "Without it, the configuration's, or the one that is recognized here.",
)
@click.option("--queue", default="", help="Queue of the site; without it, its default one.")
@click.option(
    "--device",
    default="",
    help="Device to plan for, such as A100; without it, the site's or the one here.",
)
@click.option(
    "--gpus",
    type=click.Choice(["here", "all"]),
    default="here",
    help="The GPUs to show: those of this machine or of the site, or all that are known.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Try some of the sequences on the device that is here, for half a minute.",
)
@click.option(
    "--threads",
    default=1,
    type=click.IntRange(1),
    help="CPU threads of each worker, for --measure.",
)
@click.option(
    "--workers",
    default=0,
    type=click.IntRange(0),
    help="Embed jobs that will run here at a time, for --measure; 0: one "
    "per GPU, without GPUs one per core.",
)
@click.option(
    "--lengths",
    type=EXISTING,
    help="Plan by a table of lengths (lines of `length number`, or another "
    "campaign's summary.json), not by the input.",
)
@click.option(
    "--elsewhere",
    multiple=True,
    type=EXISTING,
    help="Folder of completion records (results/MODEL/embedded) of another "
    "campaign with this model (repeatable).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the plan as JSON, a document for each model.",
)
def plan(
    *,
    more: tuple[str, ...],
    configfile: Path | None,
    settings: tuple[str, ...],
    site: str,
    queue: str,
    device: str,
    gpus: str,
    measure: bool,
    threads: int,
    workers: int,
    lengths: Path | None,
    elsewhere: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Estimate what a campaign will cost before it runs.

    It tells what is in the input, the hours on this machine or the GPU-hours at a site, the
    submissions, the bytes with those of the weights, and the command.

    The plan of each model is kept as plan.json in its folder, and the report compares it with what
    happened. Once vectors of the model are stored, a plan is only shown.

    \b
    Example:
      plm-embed plan --configfile my_config.yaml --site polaris
    """
    from plm_embed.io.console import Terminal
    from plm_embed.io.json_files import to_plain
    from plm_embed.planning import plan as planning
    from plm_embed.planning.forecast import PLAN, write_plan
    from plm_embed.planning.plan_view import show

    if more and not settings:
        raise click.UsageError(f"Got unexpected extra argument ({more[0]})")
    question = planning.Question(
        configfile=configfile,
        settings=(*settings, *more),
        site=site,
        queue=queue,
        device=device,
        all_gpus=gpus == "all",
        measure=measure,
        threads=threads,
        workers=workers,
        elsewhere=elsewhere,
        lengths=lengths,
    )
    plans = planning.plan(question)
    results = Path(question.config["results"])
    for found in plans:
        kept = results / found.model / PLAN
        # one by made-up lengths is of no campaign
        if lengths is None and not (found.stored and kept.exists()):
            write_plan(kept, found)
    if as_json:
        say("\n".join(json.dumps(to_plain(found), indent=2) for found in plans))
    else:
        show(plans, Terminal(highlight=False))


@click.command(cls=ColumnarStep)
@click.argument("results", type=EXISTING, default=Path("results"))
@click.option(
    "--output",
    type=PATH,
    help="Write this HTML file alone; without it, report.html in the folder of the model.",
)
@click.option(
    "--settings",
    default="",
    help="Configuration of the run that ends with this report, as JSON, kept beside it as "
    "config.yaml.",
)
def report(results: Path, output: Path | None, settings: str) -> None:
    """Write the report of a campaign, finished or not.

    It is one HTML file for each model, which needs neither network nor server. RESULTS is the
    folder of one model, or a results folder: then each of its models gets one. For machines, the
    same goes into ro-crate-metadata.json in the folder of the model, and for spreadsheets the
    records without a vector into skipped.tsv.

    \b
    Example:
      plm-embed report results --output so_far.html
    """
    from plm_embed.reporting.facts import collect, model_folders
    from plm_embed.reporting.outputs import REPORT
    from plm_embed.reporting.repeat import keep_config
    from plm_embed.reporting.report import write_report
    from plm_embed.reporting.ro_crate import write_crate
    from plm_embed.reporting.skipped import NAME, write_skipped

    for folder in [results] if output else model_folders(results) or [results]:
        facts = collect(folder)
        records = facts.folder / "records.parquet"
        if records.is_file() and not output:
            write_skipped(records, facts.folder / NAME)
        if settings:
            keep_config(json.loads(settings), facts.folder)
        page = output or facts.folder / REPORT
        write_report(facts, page)
        if not output:
            write_crate(facts)
        say(f"{page}: open it in a browser")


@click.command(cls=Columnar)
@click.argument("results", type=EXISTING, default=Path("results"))
def summary(results: Path) -> None:
    """Say what a campaign has produced and how to open it.

    \b
    Example:
      plm-embed summary results
    """
    from plm_embed.reporting.summary import summarize

    say(summarize(results))


COMMANDS = (plan, watch, report, summary)
