"""The command that writes a profile of Snakemake for the cluster that it is called on."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from plm_embed.cli.options import PATH
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.files import read_shipped
from plm_embed.io.terminal import printable, say

_SBATCH = {
    "slurm_account": "--account",
    "slurm_partition": "--partition",
    "qos": "--qos",
    "constraint": "--constraint",
}
_WRITTEN = "# Written by `plm-embed profile"


@click.command()
@click.argument("scheduler", type=click.Choice(["slurm", "pbs"]), required=False)
@click.option("--output", type=PATH, help="Folder to write it to; without it, it is printed.")
@click.option("--account", default="", help="Account or project to charge.")
@click.option("--queue", default="", help="Partition or queue of the jobs with GPUs.")
@click.option("--cpu-queue", default="", help="Partition of the other jobs (SLURM).")
@click.option("--gpu-type", default="", help="Type of GPU to ask for by name (SLURM), as a100.")
@click.option("--constraint", default="", help="What its nodes must have (SLURM), as for -C.")
@click.option("--scratch", default="", help="Folder on the nodes' own disks; without it, found.")
def profile(scheduler: str | None, output: Path | None, **given: str) -> None:
    """Write a profile for this cluster: what the scheduler says, and what only you know.

    Without SCHEDULER, it is the one that is here. What the scheduler leaves open is asked on a
    terminal; elsewhere, the options say it. Under SLURM, sbatch checks the profile before it is
    written. For ALCF Polaris there is a shipped one: `--profile pbs`.

    \b
    Examples:
      plm-embed profile --output my_cluster
      plm-embed profile slurm --account lab --queue gpu > my_cluster/profile.yaml
      plm-embed run proteins.fasta --model esm2_8m --profile my_cluster
    """
    from plm_embed.cli.campaign_run import CLONE
    from plm_embed.sites.recognize import scheduler_here

    scheduler = scheduler or scheduler_here()
    if not scheduler:
        raise ConfigError(
            "profile: there is neither sbatch nor qsub here", remedy="run it where you submit"
        )
    shipped = {"slurm": "slurm", "pbs": "generic-pbs"}[scheduler]
    made: dict[str, Any] = read_shipped(CLONE / "profiles" / shipped / "profile.yaml")
    embed = made["set-resources"]["embed"]
    embed |= _quoted({"scratch": given["scratch"]})
    (_add_slurm if scheduler == "slurm" else _add_pbs)(made, given)
    words = printable(shlex.join(sys.argv[2:]))
    text = f"{_WRITTEN} {words}`. The lines: profiles/README.md.\n"
    text += yaml.safe_dump(made, sort_keys=False, allow_unicode=True)
    if output is None:
        say(text.rstrip())
        return
    path = output / "profile.yaml"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(_WRITTEN):
        raise PlmEmbedError(
            f"{path}: is a profile of your own", path=path, remedy="name another --output"
        )
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(f"{path}: now plm-embed run ... --profile {shlex.quote(str(output))}", err=True)


def _add_slurm(made: dict[str, Any], given: Mapping[str, str]) -> None:
    """Add partitions, account and type of GPU. ConfigError for what SLURM does not have."""
    from plm_embed.sites import slurm

    lines = slurm.partition_lines()
    site = slurm.site_of(lines)
    queue = given["queue"] or _one(
        "partition with GPUs", "--queue", [*site["queues"]], site["default_queue"] or ""
    )
    yours = slurm.accounts()
    # sbatch may not check it
    if given["account"] and yours and given["account"].lower() not in yours:
        raise ConfigError(f"--account {given['account']}: yours are {', '.join(yours)}")
    account = given["account"] or _one("account", "--account", yours)
    types = slurm.gpu_types(lines, queue)
    kind = given["gpu_type"]
    if not kind and types and _terminal():
        kind = _prompt("type of GPU, or any", ["any", *types], "any").replace("any", "")
    others, default = slurm.without_gpus(lines)
    cpu_queue = given["cpu_queue"]
    if not (cpu_queue or default):
        cpu_queue = _one("partition of jobs without GPUs", "--cpu-queue", others or [queue])
    embed, others_ask = made["set-resources"]["embed"], made["default-resources"]
    others_ask |= _quoted({"slurm_account": account, "slurm_partition": cpu_queue})
    embed |= _quoted(
        {"slurm_partition": queue, "gpu_model": kind, "constraint": given["constraint"]}
    )
    for resources in (others_ask | embed, others_ask):
        options = [
            f"{word}={str(resources[key]).strip(chr(39))}"
            for key, word in _SBATCH.items()
            if key in resources
        ]
        if resources["gpu"]:
            options.append(f"--gpus={kind}:{resources['gpu']}".replace("=:", "="))
        if words := slurm.refusal(options):
            raise PlmEmbedError(
                f"SLURM refuses a job with this profile ({shlex.join(options)}): {words}"
            )


def _add_pbs(made: dict[str, Any], given: Mapping[str, str]) -> None:
    """Add queue and account. ConfigError for a queue that PBS does not have."""
    from plm_embed.sites import pbs

    queue, account = given["queue"], given["account"]
    if queue or _terminal():
        known = pbs.queues()
        queue = queue or _prompt("queue, empty for the server's", ["", *known], "")
        if queue and queue not in known:
            raise ConfigError(f"--queue {queue}: PBS has {', '.join(known)}", key="--queue")
    if not account and _terminal():
        account = _prompt("account or project to charge, empty for none", [], "")
    named = {"pbs-account": account, "pbs-queue": queue}
    made |= {key: value for key, value in named.items() if value}


def _quoted(values: Mapping[str, str]) -> dict[str, str]:
    """Return what was named, in quotes: Snakemake takes bare words for expressions."""
    return {key: repr(value) for key, value in values.items() if value}


def _one(words: str, option: str, choices: list[str], default: str = "") -> str:
    """Return the only choice, or the answer. ConfigError where nobody can be asked."""
    if len(choices) < 2:
        return "".join(choices)
    if _terminal():
        return _prompt(words, choices, default or choices[0])
    if not default:
        raise ConfigError(
            f"several: {words} {', '.join(choices)}", key=option, remedy=f"add {option} NAME"
        )
    return default


def _prompt(words: str, choices: list[str], default: str) -> str:
    kind = click.Choice(choices) if choices else str
    return str(click.prompt(words, default=default, type=kind, err=True))


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


COMMANDS = (profile,)
