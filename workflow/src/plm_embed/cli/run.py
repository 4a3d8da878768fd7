"""The command that runs a whole campaign: sequences in, proven vectors out."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from plm_embed.cli.options import PATH, required, several
from plm_embed.cli.snakemake_call import execute
from plm_embed.errors import ConfigError
from plm_embed.io.terminal import say
from plm_embed.io.threads import cores as usable_cores
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.program import program
from plm_embed.reporting.outputs import CONFIG
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.checks import mistakes
from plm_embed.workflow.config import Config, input_paths, models_of, refusal, with_defaults
from plm_embed.workflow.kept_config import read_kept, write_kept
from plm_embed.workflow.resources import local_resources


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@required(
    "--model", "models", multiple=True, help="Name or alias, as esm2_8m or prott5; repeatable."
)
@click.option(
    "--results", default=Path("results"), type=PATH, help="Folder for all results, not the weights."
)
@click.option(
    "--profile",
    default="",
    help="Where jobs run: a profile of this package (slurm, pbs ...), or a folder. Without it on "
    "this machine, on its GPUs if it has any.",
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
@several("--keep", help="Column to carry into the index; repeatable.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu"]),
    default="auto",
    help="Where to compute without a profile; auto: on the GPUs, if there are any.",
)
@several(
    "--set",
    "settings",
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

    This is a whole campaign, without a configuration to write. INPUTS are FASTA files or tables.
    The configuration that these options make is written to RESULTS/config.yaml, and Snakemake runs
    it. After an interruption, the same command goes on; a finished campaign is left as it is. With
    other options, what they change is computed.

    \b
    Examples:
      plm-embed run proteins.fasta --model esm2_8m
      plm-embed run table.csv --model esm2_650m --id accession --sequence residues \\
        --keep organism --results flu --profile slurm --set buckets=64
    """
    from plm_embed.reporting.summary import summarize

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
    options = snakemake_options(config, profile, cores, device)
    configfile = write_configuration(config, options)
    folder = shlex.quote(str(results))
    click.echo(f"Settings: {configfile}. To follow: {program()} watch {folder}", err=True)
    results = Path(config["results"])
    execute(options, results, list(models_of(config)))
    say(summarize(results))


def configuration(keys: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return the complete configuration of these keys and of `key=value` settings.

    ConfigError with a line for each problem.
    """
    config: Config = dict(keys)
    for setting in settings:
        key, equals, value = setting.partition("=")
        *blocks, last = key.split(".", 1 if key.startswith("weights.") else -1)
        block = config
        for name in blocks:
            block = block.setdefault(name, {})
        if not equals:
            example = "write KEY=VALUE, such as --set embedding.layers=[-1]"
            raise ConfigError(f"--set {setting}: {example}", key="--set")
        block[last] = yaml.safe_load(value)
    if problems := mistakes(config, config):
        raise refusal(problems)
    config = with_defaults(config)
    models = list(models_of(config))
    return config | {"model": models if len(models) > 1 else models[0]}


def snakemake_options(
    config: Config, profile: str, cores: int | None, device: str = ""
) -> list[str]:
    """Return the options of Snakemake for a campaign; without a profile it runs here, on as many
    GPUs as there are.
    """
    options = ["--configfile", str(Path(config["results"], CONFIG))]
    options += ["--workflow-profile", str(CLONE / "profiles" / "default")]
    if profile:
        options += ["--profile", profile_folder(profile)]
    elif device == "cpu":
        options += ["--set-resources", "embed:device=cpu"]
    else:
        options += local_resources(len(visible_gpus()))
    if cores or not profile:
        options += ["--cores", str(cores or usable_cores())]
    return options


def write_configuration(config: Config, options: Sequence[str]) -> Path:
    """Write the configuration into the results folder, and return its path.

    ConfigError when the folder has vectors that this campaign would not have: of other inputs or
    settings.
    """
    path = Path(config["results"], CONFIG)
    has_vectors = any(path.parent.glob("*/embedded/*.json"))
    before, folder = read_kept(path) if has_vectors else ({}, Path())
    if lost := list(_lost(before, config, folder)):
        raise ConfigError(
            f"{path}: the vectors in this folder have {'; '.join(lost)}",
            key=lost[0].partition(":")[0],
            path=path,
            remedy="choose another --results, or delete that file to replace its results",
        )
    write_kept(path, config, f"To continue with Snakemake: {shell_line(options)}")
    return path


def _lost(before: Config, config: Config, folder: Path) -> Iterator[str]:
    """Yield the inputs and the settings of the vectors that another configuration does not have.

    folder: what the paths in `before` are relative to.
    """
    for block in ("embedding", "residues"):
        for key, old in before.get(block, {}).items():
            new = config[block].get(key)
            if old != new and key != "per_residue_limit_gb":
                yield f"{block}.{key}: {old}, not {new}"
    files = {os.path.realpath(path) for path in input_paths(config)}
    for path in input_paths(before) if before else ():
        if not {os.path.realpath(path), os.path.realpath(folder / path)} & files:
            yield f"inputs: {path}, too"
