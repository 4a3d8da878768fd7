"""A profile of Snakemake for one cluster and one user: a shipped one, with what he has to say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plm_embed.io.files import read_shipped
from plm_embed.workflow.site import Given, layer

Profile = dict[str, Any]

_SBATCH = {
    "slurm_account": "--account",
    "slurm_partition": "--partition",
    "qos": "--qos",
    "constraint": "--constraint",
}


@dataclass(frozen=True)
class Said:
    """What a user says of himself and of a cluster; '' leaves it open.

    scheduler: slurm or pbs; site: by name or file, where it is not recognized by itself; sized:
    whether a site's file says how large a job is; queue: of embed, a partition, QOS or queue, by
    the resource `queue_key` under SLURM; cpu_queue: partition of the other jobs; gpu_type: as SLURM
    names it; constraint: of embed, under SLURM; scratch: a folder on the nodes' own disks.
    """

    scheduler: str
    site: str = ""
    sized: bool = False
    account: str = ""
    queue: str = ""
    queue_key: str = ""
    cpu_queue: str = ""
    gpu_type: str = ""
    constraint: str = ""
    scratch: str = ""


def profile(shipped: Path, said: Said) -> Profile:
    """The shipped profile of the scheduler with what was said."""
    found: Profile = read_shipped(shipped / said.scheduler / "profile.yaml")
    embed = {"scratch": said.scratch}
    if said.scheduler == "slurm":
        embed |= {said.queue_key: said.queue, "gpu_model": said.gpu_type}
        embed["constraint"] = said.constraint
        default = {"slurm_account": said.account, "slurm_partition": said.cpu_queue}
        # as a resource, not as `config:`, which --config would take the place of
        default["site"] = said.site
        _set(found.setdefault("default-resources", {}), default)
        if said.sized:
            found["set-resources"]["embed"].pop("gpu", None)
            found.pop("set-threads", None)
    else:
        named = {"pbs-site": said.site, "pbs-account": said.account, "pbs-queue": said.queue}
        found |= {key: value for key, value in named.items() if value}
    if any(embed.values()):
        _set(found.setdefault("set-resources", {}).setdefault("embed", {}), embed)
    return found


def _set(resources: Profile, values: Mapping[str, str]) -> None:
    """In quotes: Snakemake takes bare words for expressions where it can."""
    resources |= {key: repr(value) for key, value in values.items() if value}


def sbatch_options(found: Profile, site: str = "") -> list[list[str]]:
    """What jobs with a profile for SLURM ask for, in words for sbatch: a job of embed, another one.

    site: by name or file, '' to recognize it.
    """
    embed = _unquoted(found.get("set-resources", {}).get("embed", {}))
    default = _unquoted(found.get("default-resources", {}))
    below = layer(Given(found["executor"], site=site, embed=embed, default=default))
    others = _unquoted(below.default) | default
    return [_options(others | _unquoted(below.embed) | embed), _options(others)]


def _options(resources: Mapping[str, str]) -> list[str]:
    """Resources as options of sbatch, as the executor writes them."""
    words = [f"{word}={resources[key]}" for key, word in _SBATCH.items() if key in resources]
    kind = ":".join(filter(None, [resources.get("gpu_model"), resources.get("gpu")]))
    return words + ([f"--gpus={kind}"] if resources.get("gpu", "0") != "0" else [])


def _unquoted(resources: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value).strip("'") for key, value in resources.items()}


WRITTEN = "# Written by `"
"""How a profile that was written here begins, before the command."""


def text(found: Profile, command: str) -> str:
    """As a file, which says how it was made."""
    heading = f"{WRITTEN}{command}`. What the lines mean: profiles/README.md.\n"
    return heading + yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
