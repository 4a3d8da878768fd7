"""The command that writes a profile of Snakemake for the cluster that it is called on."""

import getpass
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import yaml

from plm_embed.cli.options import PATH, optional
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.terminal import printable, say
from plm_embed.startup import program

_WRITTEN = "# Written by `plm-embed profile"
SECONDS_TO_ANSWER = 30.0


@click.command()
@click.argument("scheduler", type=click.Choice(["slurm", "pbs"]), required=False)
@click.option("--output", type=PATH, help="Folder to write to; without it, the profile is printed.")
@optional("--account", help="Account or project to charge.")
@optional("--queue", help="Partition or queue of the embed jobs.")
@optional("--cpu-queue", help="Partition of the other jobs (SLURM).")
@optional("--gpu-type", help="Type of GPU to request by name (SLURM), as a100.")
def profile(scheduler: str | None, output: Path | None, **options: str) -> None:
    """Write a profile for this cluster from what its scheduler says.

    Without SCHEDULER, it is the one that is installed here. Where the scheduler leaves something
    open, the command names the choices and the options for them. Under SLURM, embed jobs run on
    CPUs where the partition has no GPUs, and sbatch checks the profile before it is written. For
    ALCF Polaris there is a shipped one: `--profile pbs`.

    \b
    Examples:
      plm-embed profile --output my_cluster
      plm-embed profile slurm --account lab --queue gpu --output my_cluster
      plm-embed run proteins.fasta --model esm2_8m --profile my_cluster
    """
    from plm_embed.workflow.call import CLONE

    submit = {"slurm": "sbatch", "pbs": "qsub"}  # SLURM may come with a qsub of its own
    scheduler = scheduler or next((name for name in submit if shutil.which(submit[name])), None)
    if not scheduler:
        raise ConfigError(
            "profile: neither sbatch nor qsub is on PATH", remedy="run it where you submit"
        )
    shipped = {"slurm": "slurm", "pbs": "generic-pbs"}[scheduler]
    text = (CLONE / "profiles" / shipped / "profile.yaml").read_text(encoding="utf-8")
    _, text = text.split("\n\n", 1)  # the head is about the shipped file
    text = (_with_slurm if scheduler == "slurm" else _with_pbs)(text, options)
    words = printable(shlex.join(sys.argv[2:]))
    text = f"{_WRITTEN} {words}`. profiles/README.md has the rest.\n\n{text}"
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
    following = f"{program()} run ... --profile {shlex.quote(str(output))}"
    click.echo(f"wrote {path} for {scheduler.upper()}; next: {following}", err=True)


def _filled(text: str, values: Mapping[str, object]) -> str:
    """Return a part of a profile with these values, unless empty, in the first line of each key,
    which may be commented out.
    """
    for key, value in values.items():
        if value:
            line = f"{key}: {value}".replace("\\", r"\\")
            text = re.sub(rf"(?m)^( *)(?:# )?{key}: \S+", rf"\g<1>{line}", text, count=1)
    return text


def _quoted(value: str) -> str:
    """Return a text in quotes within quotes, for Snakemake evaluates bare words; '' if empty."""
    return json.dumps(repr(value), ensure_ascii=False) if value else ""


def _with_slurm(text: str, options: Mapping[str, str]) -> str:
    """Return the profile with partitions, account, limits and type of GPU; in a partition without
    GPUs embed computes on CPUs.

    ConfigError for all that SLURM leaves open, and for what sbatch refuses.
    """
    limits, with_gpus, usual = _partitions()
    left_open: list[str] = []

    def choose(option: str, choices: Sequence[str]) -> str:
        """Return the option, or the only choice."""
        if not options[option] and len(choices) > 1:
            left_open.append(f"--{option.replace('_', '-')} ({' or '.join(choices)})")
        return options[option] or "".join(choices)

    fitting = with_gpus or list(limits)
    queue = choose("queue", [usual] if usual in fitting else fitting)
    account = choose("account", _accounts())
    kind, cpu_queue = options["gpu_type"], options["cpu_queue"]
    on_cpu = queue in limits and queue not in with_gpus and not kind
    if on_cpu:
        click.echo(f"partition {queue} has no GPUs: embed will run on its CPUs", err=True)
    if not usual or usual in with_gpus:  # no default partition for jobs without GPUs
        without = [] if on_cpu else [name for name in limits if name not in with_gpus]
        cpu_queue = choose("cpu_queue", without or [queue])
    if left_open:
        words = f"profile: SLURM has several of these; choose {' and '.join(left_open)}"
        raise ConfigError(words, key=left_open[0].partition(" ")[0])
    content = yaml.safe_load(text)
    time = min(content["set-resources"]["embed"]["runtime"], limits.get(queue, math.inf))
    cpu_limit = limits.get(cpu_queue or usual, math.inf)
    cpu_time = min(content["default-resources"]["runtime"], cpu_limit)
    gpus = "" if on_cpu else f"{kind}:1".lstrip(":")
    _try_job(account=account, partition=queue, gpus=gpus, time=time)
    _try_job(account=account, partition=cpu_queue, time=cpu_time)
    places = {"slurm_account": _quoted(account), "slurm_partition": _quoted(cpu_queue)}
    devices = {"gpu": "0", "device": "cpu"} if on_cpu else {"gpu_model": _quoted(kind)}
    jobs = {"slurm_partition": _quoted(queue), "runtime": time, **devices}
    text, embed = text.split("set-resources:")
    text = _filled(text, {**places, "runtime": cpu_time})
    return f"{text}set-resources:{_filled(embed, jobs)}"


def _partitions() -> tuple[dict[str, float], list[str], str]:
    """Return the limit in minutes of each partition that is up, those with GPUs, and the default
    one, if it is up.
    """
    limits: dict[str, float] = {}
    with_gpus: dict[str, None] = {}
    usual = ""
    # a line per kind of node; limits are such as 1-12:00:00, 12:00:00, 30:00, infinite
    for line in _answer("sinfo", "--noheader", "--format", "%P|%a|%G|%l"):
        star, state, resources, limit = line.strip().split("|")
        if state != "up":
            continue
        name = star.rstrip("*")
        usual = usual if name == star else name
        time = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):\d+", limit)
        days, hours, minutes = (int(part or 0) for part in time.groups()) if time else (0, 0, 0)
        limits[name] = max((days * 24 + hours) * 60 + minutes, 1) if time else math.inf
        if re.search("(^|,)gpu:", resources):
            with_gpus[name] = None
    if not limits:
        remedy = "copy a shipped profile: profiles/README.md"
        raise ConfigError("sinfo: no partition is up", remedy=remedy)
    return limits, list(with_gpus), usual


def _accounts() -> list[str]:
    """Return the accounts that the user may charge; none where there is no accounting."""
    associations = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", "where"]
    try:
        lines = _answer(*associations, f"user={getpass.getuser()}", "format=account")
    except ConfigError:
        return []
    return sorted({line.strip() for line in lines if line.strip()})


def _try_job(**flags: object) -> None:
    """Let sbatch check a job with these options. ConfigError when it refuses."""
    job = [f"--{flag}={value}" for flag, value in flags.items() if value]
    _answer("sbatch", "--test-only", "--nodes=1", *job, "--wrap=true")


def _with_pbs(text: str, options: Mapping[str, str]) -> str:
    """Return the profile with queue and account. ConfigError for a queue that PBS does not have."""
    if queue := options["queue"]:
        _answer("qstat", "-Q", queue)
    values = {"pbs-account": options["account"], "pbs-queue": queue}
    return _filled(text, {key: value and json.dumps(value) for key, value in values.items()})


def _answer(*command: str) -> list[str]:
    """Return the lines that a scheduler's command prints. ConfigError when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS_TO_ANSWER
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]}: {error}", remedy="run it where you submit") from None
    if done.returncode:
        words = done.stderr.strip() or f"failed with exit code {done.returncode}"
        raise ConfigError(f"{shlex.join(command)}: {words}")
    return done.stdout.splitlines()
