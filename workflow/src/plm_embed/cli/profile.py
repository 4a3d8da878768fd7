"""The command that writes a profile of Snakemake for the cluster that it is called on."""

import getpass
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml

from plm_embed.cli.options import PATH
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.files import read_shipped
from plm_embed.io.terminal import printable, say
from plm_embed.program import program
from plm_embed.workflow.call import CLONE

_SBATCH = {
    "slurm_account": "--account",
    "slurm_partition": "--partition",
    "qos": "--qos",
    "constraint": "--constraint",
}
_WRITTEN = "# Written by `plm-embed profile"
_GPU = re.compile(r"gpu(?::(?P<type>[^:,()\s]+))?:\d+(?=[(,\s]|$)")
_SECONDS = 30.0
"""Time in which a scheduler's command has to answer."""


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
    submit = {"pbs": "qsub", "slurm": "sbatch"}
    scheduler = scheduler or next((name for name in submit if shutil.which(submit[name])), None)
    if not scheduler:
        raise ConfigError(
            "profile: there is neither sbatch nor qsub here", remedy="run it where you submit"
        )
    shipped = {"slurm": "slurm", "pbs": "generic-pbs"}[scheduler]
    made: dict[str, Any] = read_shipped(CLONE / "profiles" / shipped / "profile.yaml")
    made["set-resources"]["embed"] |= _quoted({"scratch": given["scratch"]})
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
    click.echo(f"{path}: now {program()} run ... --profile {shlex.quote(str(output))}", err=True)


class _Partition(NamedTuple):
    name: str
    default: bool
    gpus: bool
    types: tuple[str, ...]
    """Types of its GPUs."""


def _partitions() -> list[_Partition]:
    """Return the partitions that are up, from a line for each kind of node in each."""
    kinds: dict[str, list[str]] = {}
    for line in _answer("sinfo", "--noheader", "--format", "%P|%a|%G"):
        name, up, resources = line.strip().split("|")
        if up == "up":
            kinds.setdefault(name, []).append(resources)
    found = []
    for name, nodes in kinds.items():
        gpus = [match for resources in nodes for match in _GPU.finditer(resources)]
        types = tuple(dict.fromkeys(match["type"] for match in gpus if match["type"]))
        found.append(_Partition(name.rstrip("*"), name.endswith("*"), bool(gpus), types))
    return found


def _accounts() -> list[str]:
    """Return the accounts that the user may charge; none where there is no accounting."""
    asked = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
    try:
        lines = _answer(*asked, "where", f"user={getpass.getuser()}", "format=account")
    except ConfigError:
        return []
    return sorted({line.strip() for line in lines if line.strip()})


def _add_slurm(made: dict[str, Any], given: Mapping[str, str]) -> None:
    """Add partitions, account and type of GPU. ConfigError for what SLURM does not have."""
    partitions, yours = _partitions(), _accounts()
    with_gpus = [one for one in partitions if one.gpus]
    if not with_gpus:
        raise ConfigError(
            "sinfo: no partition that is up has GPUs", remedy="see profiles/README.md"
        )
    usual = next((one.name for one in with_gpus if one.default), "")
    queue = given["queue"] or _one(
        "partition with GPUs", "--queue", [one.name for one in with_gpus], usual
    )
    # sbatch may not check it
    if given["account"] and yours and given["account"].lower() not in yours:
        raise ConfigError(f"--account {given['account']}: yours are {', '.join(yours)}")
    account = given["account"] or _one("account", "--account", yours)
    types = [kind for one in with_gpus if one.name == queue for kind in one.types]
    kind = given["gpu_type"]
    if not kind and types and _terminal():
        kind = _prompt("type of GPU, or any", ["any", *types], "any").replace("any", "")
    cpu_queue = given["cpu_queue"]
    if not cpu_queue and not any(one.default for one in partitions):
        others = [one.name for one in partitions if not one.gpus]
        cpu_queue = _one("partition of jobs without GPUs", "--cpu-queue", others or [queue])
    embed, others_ask = made["set-resources"]["embed"], made["default-resources"]
    others_ask |= _quoted({"slurm_account": account, "slurm_partition": cpu_queue})
    constraint = given["constraint"]
    embed |= _quoted({"slurm_partition": queue, "gpu_model": kind, "constraint": constraint})
    for resources in (others_ask | embed, others_ask):
        options = [
            f"{word}={str(resources[key]).strip(chr(39))}"
            for key, word in _SBATCH.items()
            if key in resources
        ]
        if resources["gpu"]:
            options.append(f"--gpus={kind}:{resources['gpu']}".replace("=:", "="))
        try:
            _answer("sbatch", "--test-only", "--nodes=1", "--time=1", *options, "--wrap=true")
        except ConfigError as error:
            words = shlex.join(options)
            raise PlmEmbedError(
                f"SLURM refuses a job with this profile ({words}): {error}"
            ) from None


def _add_pbs(made: dict[str, Any], given: Mapping[str, str]) -> None:
    """Add queue and account. ConfigError for a queue that PBS does not have."""
    queue, account = given["queue"], given["account"]
    if queue or _terminal():
        known = []
        blocks = re.split(r"^Queue: ", "\n".join(_answer("qstat", "-Q", "-f")), flags=re.MULTILINE)
        for block in blocks[1:]:
            starts = block.count("enabled = True") == block.count("started = True") == 1
            known += [block.splitlines()[0].strip()] if starts else []
        queue = queue or _prompt("queue, empty for the server's", ["", *known], "")
        if queue and queue not in known:
            raise ConfigError(f"--queue {queue}: PBS has {', '.join(known)}", key="--queue")
    if not account and _terminal():
        account = _prompt("account or project to charge, empty for none", [], "")
    named = {"pbs-account": account, "pbs-queue": queue}
    made |= {key: value for key, value in named.items() if value}


def _answer(*command: str) -> list[str]:
    """Return the lines that a scheduler's command prints. ConfigError without an answer."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]}: {error}", remedy="run it where you submit") from None
    if done.returncode:
        raise ConfigError(done.stderr.strip() or f"{command[0]} failed ({done.returncode})")
    return done.stdout.splitlines()


def _quoted(values: Mapping[str, str]) -> dict[str, str]:
    """Return what was named, in quotes: Snakemake takes bare words for expressions."""
    return {key: repr(value) for key, value in values.items() if value}


def _one(words: str, option: str, choices: Sequence[str], default: str = "") -> str:
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


def _prompt(words: str, choices: Sequence[str], default: str) -> str:
    kind = click.Choice(choices) if choices else str
    return str(click.prompt(words, default=default, type=kind, err=True))


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


COMMANDS = (profile,)
