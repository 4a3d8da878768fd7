"""The command that runs a whole campaign: sequences in, proven vectors out."""

import shlex
from pathlib import Path

import click

from plm_embed.cli.options import PATH
from plm_embed.io.terminal import say


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    help="Name or alias, such as esm2_8m or prott5; repeatable.",
)
@click.option(
    "--results",
    default=Path("results"),
    type=PATH,
    help="Folder for everything that is written, the weights excepted.",
)
@click.option(
    "--profile",
    default="",
    help="Where jobs run: a profile of this package (local, slurm, pbs ...), or a folder. Without "
    "it on this machine, on its GPUs if it has any.",
)
@click.option(
    "--weights",
    default="",
    help="The file that the authors publish, or a Hugging Face folder; without it, downloaded. "
    "esm2_t3_untrained, a tiny model to try things out with, is shipped.",
)
@click.option("--cores", type=click.IntRange(1), help="CPU cores to use here; without it, all.")
@click.option("--id", "id_column", help="Column with the ids (tables only).")
@click.option("--sequence", "sequence_column", help="Column with the residues (tables only).")
@click.option("--keep", multiple=True, help="Column to carry into the index; repeatable.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other key of the configuration, such as embedding.layers=[6,-1]; repeatable.",
)
def run(
    *,
    inputs: tuple[Path, ...],
    models: tuple[str, ...],
    results: Path,
    profile: str,
    weights: str,
    cores: int | None,
    id_column: str | None,
    sequence_column: str | None,
    keep: tuple[str, ...],
    settings: tuple[str, ...],
) -> None:
    """Embed the sequences of some files, from the input to the validated result.

    It is a whole campaign, without a configuration to write. INPUTS are FASTA files or tables, as
    many as wanted. The configuration that these options stand for is written to
    RESULTS/config.yaml, and Snakemake runs it. Interrupted, the same command goes on; a campaign
    that is finished is left as it is.

    \b
    Examples:
      plm-embed run proteins.fasta --model esm2_8m
      plm-embed run table.csv --model esm2_650m --id accession --sequence residues \\
        --keep organism --results flu --profile slurm --set buckets=64
    """
    from plm_embed.cli import campaign_run as campaign
    from plm_embed.cli.campaign_call import execute
    from plm_embed.models.registry import find_model
    from plm_embed.workflow.ending import said_of_success
    from plm_embed.workflow.run_note import refuse_beside_another

    table = {"id": id_column, "sequence": sequence_column, "keep": list(keep)}
    given = {
        "inputs": [str(path) for path in inputs],
        "model": list(models),
        "results": str(results),
        "weights": weights,
        "table": {name: value for name, value in table.items() if value},
    }
    config = campaign.configuration({key: item for key, item in given.items() if item}, settings)
    command = campaign.Command.of(config, profile, cores)
    refuse_beside_another(results)
    configfile = campaign.write_configuration(config, command)
    again, folder = shlex.join(command.shown), configfile.parent
    click.echo(f"{configfile} says what is done; to run it again, or extended: {again}", err=True)
    if not execute(command, folder):
        say("nothing to do: everything is there and up to date")
    say("\n".join(said_of_success(folder, [find_model(name).name for name in config["model"]])))


COMMANDS = (run,)
