"""The command that runs a whole campaign: sequences in, proven vectors out."""

from pathlib import Path

import click

from plm_embed.cli.options import PATH
from plm_embed.io.terminal import say
from plm_embed.workflow.config import listed


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
    "--device",
    type=click.Choice(["auto", "cpu"]),
    default="auto",
    help="Where to compute without a profile; auto: on the GPUs, if there are any.",
)
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
    device: str,
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
    from plm_embed.cli.campaign_run import command, configuration, execute, write_configuration
    from plm_embed.reporting.closing import closing

    columns = {"id": id_column, "sequence": sequence_column, "keep": list(keep)}
    columns = {name: value for name, value in columns.items() if value}
    config = configuration(
        {
            "inputs": [{"path": str(path), **columns} if columns else str(path) for path in inputs],
            "model": list(models),
            "results": str(results),
            "weights": weights,
        },
        settings,
    )
    words = command(config, profile, cores, device)
    configfile = write_configuration(config, words)
    click.echo(
        f"{configfile}: the configuration; to follow the run: plm-embed watch {results}", err=True
    )
    execute(words)
    say("\n".join(closing(Path(config["results"]), list(listed(config["model"])))))


COMMANDS = (run,)
