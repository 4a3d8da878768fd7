"""The command that writes a profile of Snakemake for the cluster that it is called on."""

import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from plm_embed.cli.options import PATH
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.terminal import printable

if TYPE_CHECKING:
    from plm_embed.workflow.profile import Said


OLD = "profile.yaml.before"


@click.command()
@click.argument("site", default="")
@click.option("--output", type=PATH, help="Folder to write it to; without it, it is printed.")
@click.option("--account", default="", help="Account or project to charge.")
@click.option("--queue", default="", help="Partition, QOS or queue of the jobs with GPUs.")
@click.option("--cpu-queue", default="", help="Partition of the other jobs (SLURM).")
@click.option("--gpu-type", default="", help="Type of GPU to ask for by name (SLURM), as a100.")
@click.option("--constraint", default="", help="What its nodes must have (SLURM), as for -C.")
@click.option("--scratch", default="", help="Folder on the nodes' own disks; without it, found.")
def profile(
    *,
    site: str,
    output: Path | None,
    account: str,
    queue: str,
    cpu_queue: str,
    gpu_type: str,
    constraint: str,
    scratch: str,
) -> None:
    """Write a profile for this cluster: what the scheduler says, and what only you know.

    SITE is slurm, pbs, or a site by name or file, such as polaris; without it, what is here. Asked
    is what the scheduler leaves open, on a terminal; elsewhere, the options say it. The profile is
    checked before it is written: by a dry run, under SLURM by `sbatch --test-only` too.

    \b
    Examples:
      plm-embed profile --output my_cluster
      plm-embed profile slurm --account lab --queue gpu > my_cluster/profile.yaml
      plm-embed run proteins.fasta --model esm2_8m --profile my_cluster
    """
    from plm_embed.cli.campaign_run import CLONE
    from plm_embed.workflow import profile as made

    options = {
        "account": account, "queue": queue, "cpu_queue": cpu_queue, "gpu_type": gpu_type,
        "constraint": constraint, "scratch": scratch,
    }  # fmt: skip
    said = _said(site, options)
    words = shlex.join(["plm-embed", "profile", *sys.argv[2:]])
    found = made.profile(CLONE / "profiles", said)
    text = made.text(found, printable(words))
    _check(text)
    if said.scheduler == "slurm" and _submits():
        _ask_sbatch(made.sbatch_options(found, said.site))
    if output is None:
        click.echo(text, nl=False)
        return
    output.mkdir(parents=True, exist_ok=True)
    path = output / "profile.yaml"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(
        f"{made.WRITTEN}plm-embed"
    ):
        raise PlmEmbedError(
            f"{path}: is a profile of your own", path=path, remedy="name another --output"
        )
    kept = ""
    if path.exists() and path.read_text(encoding="utf-8") != text:  # somebody may have edited it
        path.replace(output / OLD)
        kept = f" (the one before is {OLD})"
    path.write_text(text, encoding="utf-8")
    named = f"--profile {shlex.quote(str(output))}"
    click.echo(
        f"{path}: checked and written{kept}; now: plm-embed run ... {named}, or "
        f"snakemake {named} --configfile ...",
        err=True,
    )


def _said(site: str, options: Mapping[str, str]) -> "Said":
    """Where this is, and what is left to ask there."""
    from plm_embed.sites.data import read_site
    from plm_embed.sites.recognize import recognize, scheduler_here
    from plm_embed.workflow.profile import Said

    if Path(site).is_file() and site.endswith((".yaml", ".yml")):
        site = str(Path(site).absolute())  # it is checked, and used, in other folders
    scheduler = scheduler_here() if site in ("", "slurm", "pbs") else ""
    if site in ("slurm", "pbs"):
        scheduler = site
    elif not site and not scheduler:
        raise ConfigError(
            "profile: there is neither sbatch nor qsub here",
            key="site",
            remedy="run it where you submit, or name a site, such as polaris",
        )
    here = recognize(scheduler) if scheduler else None
    name = here.site if here else site
    if here:
        click.echo(f"{name or scheduler}: {here.why}", err=True)
    found = read_site(name or scheduler)
    scheduler = str(found.get("scheduler", "pbs"))
    values = dict(options)
    if scheduler == "slurm":
        _ask_slurm(found, values)
    else:
        _ask_pbs(found, values, generic=name == "generic")
    if not values["scratch"] and _terminal():
        values["scratch"] = _prompt("folder on the nodes' own disks, empty to find it", [], "")
    return Said(
        scheduler=scheduler,
        site="" if here or name == "generic" else name,
        sized=name not in ("", "slurm", "generic"),
        queue_key=str(found.get("queue_resource", "")),
        **values,
    )


def _ask_slurm(site: Mapping[str, Any], values: dict[str, str]) -> None:
    from plm_embed.sites import slurm

    key, queues = str(site.get("queue_resource", "")), list(site["queues"])
    default = str(site.get("default_queue") or "")
    if not values["queue"]:
        words = "QOS" if key == "qos" else "partition with GPUs"
        values["queue"] = default if _known(site) else _one(words, "--queue", queues, default)
    yours = slurm.accounts()
    # sbatch may not check it
    if values["account"] and yours and values["account"].lower() not in yours:
        raise ConfigError(
            f"--account {values['account']}: yours are {', '.join(yours)}", key="--account"
        )
    values["account"] = values["account"] or _one("account", "--account", yours)
    if _known(site):
        return
    lines = slurm.partition_lines()
    types = slurm.gpu_types(lines, values["queue"])
    if not values["gpu_type"] and types and _terminal():
        asked = _prompt("type of GPU, or any", ["any", *types], "any")
        values["gpu_type"] = "" if asked == "any" else asked
    others, default = slurm.without_gpus(lines)
    if not (values["cpu_queue"] or default):
        values["cpu_queue"] = _one(
            "partition of jobs without GPUs", "--cpu-queue", others or [values["queue"]]
        )


def _known(site: Mapping[str, Any]) -> bool:
    """Whether its queues stand in a site's file, not only in what sinfo says."""
    return "source" in site


def _ask_pbs(site: Mapping[str, Any], values: dict[str, str], *, generic: bool) -> None:
    from plm_embed.sites import pbs
    from plm_embed.workflow.site import account_of, account_words

    if generic and (values["queue"] or _terminal()):
        known = pbs.queues()
        values["queue"] = values["queue"] or _prompt(
            "queue, empty for the server's", ["", *known], ""
        )
        if values["queue"] and values["queue"] not in known:
            raise ConfigError(
                f"--queue {values['queue']}: PBS has {', '.join(known)}", key="--queue"
            )
    values["account"] = values["account"] or account_of(site)
    if not values["account"] and _terminal():
        values["account"] = _prompt("account or project to charge, empty for none", [], "")
    if not values["account"] and site.get("account", {}).get("required"):
        raise ConfigError(
            f"{site.get('description')} charges an account: add --account NAME "
            f"(later: {account_words(site)})",
            key="--account",
        )


def _one(words: str, option: str, choices: list[str], default: str = "") -> str:
    """The only choice, or what is answered. ConfigError where nobody can be asked."""
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


def _check(text: str) -> None:
    """Refuse a profile with which a campaign would not begin: a dry run of the shipped sample."""
    from plm_embed.cli.campaign_run import CLONE, SAMPLE, SAMPLE_MODEL, need_snakemake

    need_snakemake()
    with TemporaryDirectory() as folder:
        Path(folder, "profile.yaml").write_text(text, encoding="utf-8")
        settings = [
            f"inputs={SAMPLE / 'proteins.fasta'}",
            f"model={SAMPLE_MODEL}",
            f"weights={SAMPLE / f'{SAMPLE_MODEL}.pt'}",
        ]
        Path(folder, "empty.yaml").write_text("{}\n", encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable, "-m", "snakemake", "--snakefile", str(CLONE / "Snakefile"),
                "--profile", folder, "--directory", folder, "--dry-run", "--quiet", "rules",
                "--configfile", str(Path(folder, "empty.yaml")), "--config", *settings,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    said_there = (done.stderr + done.stdout).splitlines()
    if missing := [line for line in said_there if "before you submit: " in line]:
        raise PlmEmbedError(missing[0].partition("before you submit: ")[2])
    if done.returncode:
        raise PlmEmbedError("\n".join(["a dry run with this profile fails:", *said_there[-5:]]))


def _ask_sbatch(jobs: Iterable[Sequence[str]]) -> None:
    """Refuse a profile whose jobs SLURM would not take."""
    from plm_embed.sites import slurm

    for options in jobs:
        if words := slurm.refusal(options):
            raise PlmEmbedError(
                f"SLURM refuses a job with this profile ({shlex.join(options)}): {words}"
            )


def _submits() -> bool:
    from plm_embed.sites.recognize import scheduler_here

    return scheduler_here() == "slurm"


COMMANDS = (profile,)
