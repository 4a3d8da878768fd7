"""The command that writes a profile of Snakemake for the cluster that it is called on."""

import getpass
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from plm_embed.cli.options import PATH
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.files import read_shipped
from plm_embed.io.terminal import printable, say
from plm_embed.program import program

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
@click.option("--output", type=PATH, help="Folder to write to; without it, the profile is printed.")
@click.option("--account", default="", help="Account or project to charge.")
@click.option("--queue", default="", help="Partition or queue of the jobs with GPUs.")
@click.option("--cpu-queue", default="", help="Partition of the other jobs (SLURM).")
@click.option("--gpu-type", default="", help="Type of GPU to request (SLURM), such as a100.")
@click.option("--constraint", default="", help="Features that nodes must have (SLURM), as for -C.")
@click.option(
    "--scratch", default="", help="Folder on the nodes' own disks; without it, jobs look for one."
)
def profile(scheduler: str | None, output: Path | None, **options: str) -> None:
    """Write a profile for this cluster from what its scheduler says.

    Without SCHEDULER, it is the one that is installed here. On a terminal, the command asks for
    what the scheduler leaves open; elsewhere, the options must tell. Under SLURM, sbatch checks
    the profile before it is written. For ALCF Polaris there is a shipped one: `--profile pbs`.

    \b
    Examples:
      plm-embed profile --output my_cluster
      plm-embed profile slurm --account lab --queue gpu > my_cluster/profile.yaml
      plm-embed run proteins.fasta --model esm2_8m --profile my_cluster
    """
    from plm_embed.workflow.call import CLONE

    submit = {"pbs": "qsub", "slurm": "sbatch"}
    scheduler = scheduler or next((name for name in submit if shutil.which(submit[name])), None)
    if not scheduler:
        raise ConfigError(
            "profile: neither sbatch nor qsub is on PATH", remedy="run it where you submit"
        )
    shipped = {"slurm": "slurm", "pbs": "generic-pbs"}[scheduler]
    content: dict[str, Any] = read_shipped(CLONE / "profiles" / shipped / "profile.yaml")
    content["set-resources"]["embed"] |= _quoted(scratch=options["scratch"])
    (_add_slurm if scheduler == "slurm" else _add_pbs)(content, options)
    words = printable(shlex.join(sys.argv[2:]))
    text = f"{_WRITTEN} {words}`. The lines: profiles/README.md.\n"
    text += yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if output is None:
        say(text.rstrip())
        return
    path = output / "profile.yaml"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(_WRITTEN):
        raise PlmEmbedError(
            f"{path}: a profile of your own is there already",
            path=path,
            remedy="name another --output",
        )
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    folder = shlex.quote(str(output))
    click.echo(f"wrote {path}; next: {program()} run ... --profile {folder}", err=True)


def _add_slurm(content: dict[str, Any], options: Mapping[str, str]) -> None:
    """Add partitions, account and type of GPU. ConfigError for what SLURM does not have."""
    gpus: dict[str, list[str]] = {}  # types of GPUs ("" without a name) by partition that is up
    limits: dict[str, float] = {}  # minutes
    default = ""
    # a line per kind of node
    for line in _answer("sinfo", "--noheader", "--format", "%P|%a|%G|%l"):
        name, state, resources, limit = line.strip().split("|")
        if state == "up":
            default = name.rstrip("*") if name.endswith("*") else default
            limits[name.rstrip("*")] = _minutes(limit)
            types = [match["type"] or "" for match in _GPU.finditer(resources)]
            gpus.setdefault(name.rstrip("*"), []).extend(types)
    with_gpus = [name for name, types in gpus.items() if types]
    if not with_gpus:
        raise ConfigError(
            "sinfo: no partition with GPUs is up",
            remedy="copy a shipped profile: profiles/README.md",
        )
    queue = options["queue"] or _choose(
        "partition with GPUs",
        "--queue",
        with_gpus,
        default if default in with_gpus else "",
        several="more than one partition has GPUs",
    )
    accounts = _accounts()
    account = options["account"] or _choose(
        "account", "--account", accounts, several="you have more than one account"
    )
    if accounts and account.lower() not in accounts:  # sbatch may not check it
        raise ConfigError(
            f"--account {account}: SLURM lists {' and '.join(accounts)} for you",
            key="--account",
        )
    kind, types = options["gpu_type"], list(dict.fromkeys(filter(None, gpus.get(queue, []))))
    if not kind and types and _on_terminal():
        kind = _prompt("type of GPU, or any", ["any", *types], "any").replace("any", "")
    cpu_queue = options["cpu_queue"]
    if not cpu_queue and not default:
        without = [name for name in gpus if name not in with_gpus] or [queue]
        cpu_queue = _choose(
            "partition of jobs without GPUs",
            "--cpu-queue",
            without,
            several="more than one partition has no GPUs",
        )
    content["default-resources"] |= _quoted(slurm_account=account, slurm_partition=cpu_queue)
    content["set-resources"]["embed"] |= _quoted(
        slurm_partition=queue, gpu_model=kind, constraint=options["constraint"]
    )
    shared, embed = content["default-resources"], content["set-resources"]["embed"]
    for resources, partition in ((embed, queue), (shared, cpu_queue or default)):
        resources["runtime"] = min(resources["runtime"], limits.get(partition, math.inf))
    for resources in (shared | embed, shared):
        words = [
            f"{option}={str(resources[key]).strip(chr(39))}"
            for key, option in _SBATCH.items()
            if key in resources
        ]
        if resources["gpu"]:
            words.append(f"--gpus={kind}:{resources['gpu']}".replace("=:", "="))
        words.append(f"--time={resources['runtime']}")
        try:
            _answer("sbatch", "--test-only", "--nodes=1", *words, "--wrap=true")
        except ConfigError as error:
            job = f"a job with this profile ({shlex.join(words)})"
            raise PlmEmbedError(f"SLURM refuses {job}: {error}") from None


def _minutes(limit: str) -> float:
    """Return the minutes of a limit as SLURM writes it: 1-12:00:00, 12:00:00, 30:00, infinite."""
    time = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):\d+", limit)
    if not time:
        return math.inf
    days, hours, minutes = (int(number or 0) for number in time.groups())
    return max((days * 24 + hours) * 60 + minutes, 1)


def _accounts() -> list[str]:
    """Return the accounts that the user may charge; none where there is no accounting."""
    associations = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", "where"]
    try:
        lines = _answer(*associations, f"user={getpass.getuser()}", "format=account")
    except ConfigError:
        return []
    return sorted({line.strip() for line in lines if line.strip()})


def _add_pbs(content: dict[str, Any], options: Mapping[str, str]) -> None:
    """Add queue and account. ConfigError for a queue that PBS does not have."""
    queue, account = options["queue"], options["account"]
    if queue or _on_terminal():
        blocks = re.split(r"^Queue: ", "\n".join(_answer("qstat", "-Q", "-f")), flags=re.MULTILINE)
        queues = [
            block.splitlines()[0].strip()
            for block in blocks[1:]
            if block.count("enabled = True") == block.count("started = True") == 1
        ]
        queue = queue or _prompt("queue, empty for the server's", ["", *queues], "")
        if queue and queue not in queues:
            raise ConfigError(
                f"--queue {queue}: not an open queue; PBS has {', '.join(queues)}", key="--queue"
            )
    if not account and _on_terminal():
        account = _prompt("account or project to charge, empty for none", [], "")
    named = {"pbs-account": account, "pbs-queue": queue}
    content |= {key: value for key, value in named.items() if value}


def _answer(*command: str) -> list[str]:
    """Return the lines that a scheduler's command prints. ConfigError when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]}: {error}", remedy="run it where you submit") from None
    if done.returncode:
        raise ConfigError(done.stderr.strip() or f"{command[0]} failed ({done.returncode})")
    return done.stdout.splitlines()


def _quoted(**values: str) -> dict[str, str]:
    """Return the values that are not empty, in quotes: Snakemake evaluates bare words."""
    return {key: repr(value) for key, value in values.items() if value}


def _choose(
    words: str, option: str, choices: Sequence[str], default: str = "", *, several: str
) -> str:
    """Return the only choice, or the user's. ConfigError where nobody can be asked."""
    if len(choices) < 2:
        return "".join(choices)
    if _on_terminal():
        return _prompt(words, choices, default or choices[0])
    if not default:
        raise ConfigError(
            f"{several}: {', '.join(choices)}", key=option, remedy=f"choose one with {option}"
        )
    return default


def _prompt(words: str, choices: Sequence[str], default: str) -> str:
    kind = click.Choice(choices) if choices else str
    return str(click.prompt(words, default=default, type=kind, err=True))


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
