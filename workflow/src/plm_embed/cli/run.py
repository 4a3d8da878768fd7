"""The command that runs a whole campaign: sequences in, proven vectors out."""

import shlex
import sys
from pathlib import Path
from typing import Any

from click import Choice, argument, command, echo, option

from plm_embed.cli.options import COUNT, PATH, PROFILE, optional, required, several
from plm_embed.io.terminal import say
from plm_embed.startup import program


@command()
@argument("inputs", nargs=-1, required=True, type=PATH)
@required(
    "--model",
    "models",
    multiple=True,
    help="Name or alias, repeatable. Proteins: esm2_8m (small), esm2_650m (for a GPU). DNA: "
    "DNABERT-S.",
)
@option(
    "--results", default=Path("results"), type=PATH, help="Folder for all results, not the weights."
)
@PROFILE
@optional("--weights", help="The authors' file, or a Hugging Face folder; else downloaded.")
@option("--cores", type=COUNT, help="CPU cores to use here; without it, all.")
@option("--id", "--id-column", "id", help="Column with the ids (tables only).")
@option(
    "--sequence", "--sequence-column", "sequence", help="Column with the residues (tables only)."
)
@option(
    "--structure",
    "--structure-column",
    "structure",
    help="Column with their 3Di letters, for SaProt.",
)
@option("--partner", "--partner-column", "partner", help="Column with the second chain of pairs.")
@several("--keep", help="Column to carry into the index; repeatable.")
@option(
    "--device",
    default="auto",
    type=Choice(["auto", "cpu"]),
    help="Where to compute here; auto: GPUs, if any.",
)
@several(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    help="Any other key, as embedding.layers=[6,-1]; repeatable.",
)
def run(
    *,
    inputs: tuple[Path, ...],
    models: tuple[str, ...],
    results: Path,
    profile: str,
    weights: str,
    cores: int | None,
    device: str,
    settings: tuple[str, ...],
    keep: tuple[str, ...],
    **columns: Any,
) -> None:
    """Embed the sequences of some files, from the input to the validated result.

    This is a whole campaign, without a configuration to write. INPUTS are FASTA files or tables.
    The configuration that these options make is written to RESULTS/config.yaml, and Snakemake runs
    it. After an interruption, the same command continues; a finished campaign is left as it is. You
    can add inputs or models. Other settings need another --results. Exit code 1: a step failed, or
    no record has a vector.

    \b
    Examples:
      plm-embed run proteins.fasta --model esm2_8m
      plm-embed run table.csv --model esm2_650m --id-column accession \\
        --sequence-column residues --keep organism --results flu --profile slurm \\
        --set buckets=64
    """
    from plm_embed.cli.run_config import configuration, snakemake_options, write_configuration
    from plm_embed.cli.snakemake_call import execute
    from plm_embed.reporting.summary import gathered, summarize
    from plm_embed.workflow.config import models_of

    columns = {name: value for name, value in {**columns, "keep": list(keep)}.items() if value}
    keys = {
        "inputs": [{"path": str(path), **columns} if columns else str(path) for path in inputs],
        "model": list(models),
        "results": str(results),
        "weights": weights,
    }
    config = configuration(keys, settings)
    options = snakemake_options(config, profile, cores, device)
    configfile = write_configuration(config, options)
    results = Path(config["results"])  # --set may name another
    folder = shlex.quote(str(results))
    echo(f"Settings: {configfile}. To follow: {program()} watch {folder}", err=True)
    execute(options, results, list(models_of(config)))
    masters = gathered(results)
    say(summarize(masters))
    if not any(facts.rows for facts in masters):
        sys.exit(1)
