"""The command that runs a whole campaign: sequences in, proven vectors out."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import yaml

from plm_embed.cli.options import PATH
from plm_embed.errors import ConfigError, PlmEmbedError, missing_extra
from plm_embed.io.terminal import printable, say
from plm_embed.io.threads import cores as usable_cores
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.program import program
from plm_embed.workflow.call import CLONE, SNAKEFILE, profile_folder, shell_line
from plm_embed.workflow.checks import mistakes
from plm_embed.workflow.config import Config, listed, models_of, refusal, with_defaults
from plm_embed.workflow.kept_config import read_kept, write_kept
from plm_embed.workflow.resources import local_resources

CONFIG = "config.yaml"
_LOCKED = "Directory cannot be locked"


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
    that is finished is left as it is. With other options, it does what has changed.

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
    words = command(config, profile, cores, device)
    configfile = write_configuration(config, words)
    folder = shlex.quote(str(results))
    click.echo(f"Settings: {configfile}. To follow: {program()} watch {folder}", err=True)
    execute(words)
    say(summarize(results))


def configuration(given: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return the complete configuration of these keys and of `key=value` settings.

    ConfigError with a line for each problem.
    """
    config: Config = dict(given)
    for setting in settings:
        key, equals, value = setting.partition("=")
        *blocks, last = key.split(".", 1 if key.startswith("weights.") else -1)
        block = config
        for name in blocks:
            block = block.setdefault(name, {})
        if not equals:
            raise ConfigError(
                f"--set {setting}: write KEY=VALUE, such as --set embedding.layers=[-1]",
                key="--set",
            )
        block[last] = yaml.safe_load(value)
    if problems := mistakes(config, config):
        raise refusal(problems)
    models = list(models_of(config))
    return with_defaults(config) | {"model": models if len(models) > 1 else models[0]}


def command(config: Config, profile: str, cores: int | None, device: str = "") -> list[str]:
    """Return the options of Snakemake for a campaign; without a profile it runs here, on as many
    GPUs as there are.
    """
    words = ["--configfile", str(Path(config["results"], CONFIG))]
    words += ["--workflow-profile", str(CLONE / "profiles" / "default")]
    if profile:
        words += ["--profile", profile_folder(profile)]
    elif device == "cpu":
        words += ["--set-resources", "embed:device=cpu"]
    else:
        words += local_resources(len(visible_gpus()))
    if cores or not profile:
        words += ["--cores", str(cores or usable_cores())]
    return words


def write_configuration(config: Config, words: Sequence[str]) -> Path:
    """Write the configuration into the results folder, and return its path.

    ConfigError when the folder has vectors that this campaign would not have: of other inputs or
    settings.
    """
    path = Path(config["results"], CONFIG)
    if any(path.parent.glob("*/embedded/*.json")):
        kept, began = read_kept(path)
        if lost := list(_lost(kept, config, began)):
            raise ConfigError(
                f"{path}: the vectors in this folder have {'; '.join(lost)}",
                key=lost[0].partition(":")[0],
                path=path,
                remedy="choose another --results, or delete that file to replace its results",
            )
    write_kept(path, config, f"To continue with Snakemake: {shell_line(words)}")
    return path


def _lost(there: Config, config: Config, began: Path) -> Iterator[str]:
    """Yield the inputs and the settings of vectors that another configuration does not have.
    began: the folder that paths in `there` are relative to.
    """
    for block in ("embedding", "residues"):
        for key, old in there.get(block, {}).items():
            new = config[block].get(key)
            if old != new and key != "per_residue_limit_gb":
                yield f"{block}.{key}: {old}, not {new}"
    files = {os.path.realpath(path) for path in _inputs(config)}
    for path in _inputs(there):
        if not {os.path.realpath(path), os.path.realpath(began / path)} & files:
            yield f"inputs: {path}, too"


def _inputs(config: Config) -> list[str]:
    return [
        each["path"] if isinstance(each, Mapping) else each
        for each in listed(config.get("inputs", []))
    ]


def execute(words: Sequence[str]) -> None:
    """Run Snakemake to its end, with its words on the screen. PlmEmbedError when it fails."""
    if find_spec("snakemake") is None:
        raise PlmEmbedError(missing_extra(ModuleNotFoundError(name="snakemake")))
    locked = False
    with subprocess.Popen(
        # -P: a file of the user's that is called like a module is none
        [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(SNAKEFILE), *words,
         "--quiet", "host", "rules"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", env={**os.environ, "PYTHONSAFEPATH": "1"},
    ) as process:  # fmt: skip
        assert process.stdout
        for line in process.stdout:
            print(printable(line.rstrip()), file=sys.stderr, flush=True)
            locked = locked or _LOCKED in line
    if process.returncode and locked:
        raise PlmEmbedError(
            "another Snakemake works in this folder, or was killed",
            remedy=f"wait for it; if there is none: `{shell_line([*words, '--unlock'])}`, then the "
            "same command again",
        )
    if process.returncode:
        raise PlmEmbedError(
            "a step failed; its log is above",
            remedy="fix the problem and give the same command again; finished work is kept",
        )


COMMANDS = (run,)
