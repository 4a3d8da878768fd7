"""Commands about results: gather and prove them."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from plm_embed.cli.options import (
    EXISTING,
    PATH,
    WEIGHTS,
    ColumnarStep,
    campaign_options,
)
from plm_embed.errors import StoreError
from plm_embed.io.terminal import say


@click.command(cls=ColumnarStep)
@campaign_options
def gather(
    *,
    sequences: Path,
    embedded: Path,
    store: Path,
    master: Path,
    index: Path,
    records: Path,
) -> None:
    """Merge the parts of the store into the master file, in key order, and write its index.

    \b
    Example (with M for results/esm2_t33_650M_UR50D):
      plm-embed gather --sequences results/sequences --embedded M/embedded --store M/store \\
        --master M/master_esm2_embeddings.h5 --index M/master_esm2_embeddings.parquet \\
        --records M/records.parquet
"""
    from plm_embed.master.attributes import workflow_commit
    from plm_embed.master.gather import gather as run

    commit = {"workflow_commit": workflow_commit()}
    run(sequences, embedded, store, master, index, records, commit)


@click.command(cls=ColumnarStep)
@click.argument("results", required=False, type=EXISTING)
@partial(campaign_options, required=False)
@WEIGHTS()
@click.option(
    "--spot-checks",
    type=click.IntRange(0),
    show_default="as the run's config.yaml has it, else 16",
    help="Random rows to embed by the reference path, too.",
)
@click.option("--report", type=PATH, help="validation.json: every check and its result.")
@click.option(
    "--checksums",
    type=PATH,
    help="SHA-256 list of the results, written only when all is well.",
)
def validate(*, results: Path | None, spot_checks: int | None, **given: Path | None) -> None:
    """Prove that the master is complete and right, or say what is wrong.

    RESULTS is a results folder with one model, or the folder of a model in it. It stands for all
    options that are not given, as the run's own config.yaml has it.

    \b
    Examples:
      plm-embed validate results
      plm-embed validate results/esm2_t33_650M_UR50D --spot-checks 100
    """
    from plm_embed.inference.weights import prepared_folder
    from plm_embed.master.validate import validate as run
    from plm_embed.reading.find import find_embeddings
    from plm_embed.reporting.repeat import kept_settings

    settings: dict[str, Any] = {}
    if results:
        there = find_embeddings(results).absolute()
        settings = kept_settings(there.parent)
        given = {**_places(there, settings), **{key: path for key, path in given.items() if path}}
    for name, path in given.items():
        option = "weights" if name == "weights_folder" else name
        if path is None:
            raise click.UsageError(f"give a results folder, or --{option}")
        if results and name not in ("report", "checksums") and not path.exists():
            raise click.UsageError(f"{path}: not found; name it with --{option}")
    if spot_checks is None:
        spot_checks = settings.get("validate", {}).get("spot_checks", 16)
    places = {name: path for name, path in given.items() if path}
    master, report = places["master"], places["report"]
    validation = run(
        sequences=places["sequences"],
        embedded=places["embedded"],
        store=places["store"],
        weights=prepared_folder(places["weights_folder"]),
        master=master,
        index=places["index"],
        records=places["records"],
        spot_checks=spot_checks,
        report=report,
        checksums=places["checksums"],
    )
    if validation.problems:
        # a run shows two lines of this, so what to do stands in the first
        what = "; ".join(filter(None, [f"{master} is not valid", validation.remedy]))
        lines = [f"{what} ({report} has the details):", *validation.problems]
        raise StoreError("\n  ".join(lines), path=master)
    say(f"valid: {len(validation.checks)} checks, {validation.counts.vectors or 0:,} vectors")


def _places(master: Path, settings: dict[str, Any]) -> dict[str, Path]:
    """Return where the workflow keeps the files that validate reads and writes for a master; paths
    in the settings of its run are relative to the folder in which it ran.
    """
    from plm_embed.master.validation_record import PROOF, VALIDATION
    from plm_embed.models.manifest import RECORD
    from plm_embed.reporting.repeat import ran_in

    folder = master.parent
    began, store = ran_in(folder), folder / "store"
    return {
        "sequences": folder.parent / "sequences",
        "embedded": folder / "embedded",
        "store": store if store.is_dir() else began / (settings.get("store") or store),
        "master": master,
        "index": master.with_suffix(".parquet"),
        "records": folder / "records.parquet",
        "weights_folder": folder / RECORD,
        "report": folder / VALIDATION,
        "checksums": folder / PROOF,
    }


COMMANDS = (gather, validate)
