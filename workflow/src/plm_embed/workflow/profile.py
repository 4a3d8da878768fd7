"""A profile of Snakemake for one cluster and one user: a shipped one, with what he has to say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Profile = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What a user says of himself and of a cluster; '' leaves it open.

    scheduler: slurm or pbs; site: by name or file, where it is not recognized by itself; queue: of
    embed, a partition, QOS or queue, by the resource `queue_key` under SLURM; cpu_queue: partition
    of the other jobs; gpu_type: as SLURM names it; scratch: a folder on the nodes' own disks.
    """

    scheduler: str
    site: str = ""
    account: str = ""
    queue: str = ""
    queue_key: str = ""
    cpu_queue: str = ""
    gpu_type: str = ""
    scratch: str = ""


def profile(shipped: Path, said: Said) -> Profile:
    """The shipped profile of the scheduler with what was said."""
    found: Profile = yaml.safe_load(
        (shipped / said.scheduler / "profile.yaml").read_text(encoding="utf-8")
    )
    embed = {"scratch": said.scratch}
    if said.scheduler == "slurm":
        embed |= {said.queue_key: said.queue, "gpu_model": said.gpu_type}
        default = {"slurm_account": said.account, "slurm_partition": said.cpu_queue}
        _set(found.setdefault("default-resources", {}), default)
        found |= {"config": [f"site={said.site}"]} if said.site else {}
    else:
        named = {"pbs-site": said.site, "pbs-account": said.account, "pbs-queue": said.queue}
        found |= {key: value for key, value in named.items() if value}
    if any(embed.values()):
        _set(found.setdefault("set-resources", {}).setdefault("embed", {}), embed)
    return found


def _set(resources: Profile, values: Mapping[str, str]) -> None:
    """In quotes: Snakemake takes bare words for expressions where it can."""
    resources |= {key: repr(value) for key, value in values.items() if value}


def sbatch_options(said: Said) -> list[str]:
    """A request for one GPU, as the profile makes it, in words for sbatch."""
    kind = f"{said.gpu_type}:" if said.gpu_type else ""
    queue = "--qos" if said.queue_key == "qos" else "--partition"
    return [
        f"--gpus={kind}1",
        *([f"{queue}={said.queue}"] if said.queue else []),
        *([f"--account={said.account}"] if said.account else []),
    ]


WRITTEN = "# Written by `"
"""How a profile that was written here begins, before the command."""


def text(found: Profile, command: str) -> str:
    """As a file, which says how it was made."""
    heading = f"{WRITTEN}{command}`. What the lines mean: profiles/README.md.\n"
    return heading + yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
