"""What SLURM says of the cluster that this machine submits to: name, partitions with GPUs as site
data, accounts.
"""

import getpass
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Any

from plm_embed.errors import ConfigError

FORMAT = "%P|%a|%l|%D|%G"
"""Partition (* marks the default one), up or down, time limit, nodes, generic resources such as
gpu:a100:4(S:0-3).
"""
PATIENCE = 30.0
"""Seconds in which a command of SLURM has to answer, so that a run can start without its answer."""
SILENT = "it does not answer"
"""Why a SLURM that is installed is not recognized."""
LONGEST_HOURS = 168
"""Asked for at most where a partition has no limit."""
_GPU = re.compile(r"gpu(?::(?P<type>[^:,()\s]+))?:(?P<count>\d+)(?=[(,\s]|$)")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?:(?P<hours>\d+):)?(?P<minutes>\d+):)?(?P<rest>\d+)")


def slurm_site() -> dict[str, Any]:
    """Partitions with GPUs, as queues. ConfigError without SLURM, without an answer, or without
    such a partition.
    """
    site = site_of(partition_lines())
    preempted = preemptible(_answer("sinfo", "--noheader", "--format", "%P|%M|%p"))
    for name in preempted & site["queues"].keys():
        site["queues"][name]["preempts"] = True
    return site


def partition_lines() -> list[str]:
    """What sinfo says of each partition and kind of node, in FORMAT. ConfigError where it does not
    answer.
    """
    if shutil.which("sinfo") is None:
        raise ConfigError(
            "site: slurm: there is no sinfo here",
            key="site",
            remedy="run it where you submit, or name another site",
        )
    asked = ["sinfo", "--noheader", "--format", FORMAT]
    try:
        answer = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            "site: slurm: sinfo does not answer", key="site", remedy="try again later"
        ) from None
    if answer.returncode:
        raise ConfigError(
            f"site: slurm: sinfo says: {answer.stderr.strip() or answer.returncode}",
            key="site",
            remedy="try again later",
        )
    return answer.stdout.splitlines()


def preemptible(lines: Iterable[str]) -> set[str]:
    """Of lines of name, mode and tier, the partitions whose jobs those of a higher tier may end."""
    found = [line.strip().split("|") for line in lines]
    tiers = {
        name.rstrip("*"): (bool({"CANCEL", "REQUEUE"} & {*mode.upper().split(",")}), int(tier))
        for name, mode, tier in (fields for fields in found if len(fields) == 3)
        if tier.isdecimal()
    }
    highest = max((tier for _, tier in tiers.values()), default=0)
    return {name for name, (ends, tier) in tiers.items() if ends and tier < highest}


def without_gpus(lines: Iterable[str]) -> tuple[list[str], str]:
    """Of lines in FORMAT, the partitions that are up and have no GPUs; and the default partition,
    '' where there is none.
    """
    found: dict[str, bool] = {}
    default = ""
    for line in lines:
        name, up, _, _, gres = line.strip().split("|")
        default = name.rstrip("*") if name.endswith("*") else default
        if up == "up":
            found[name.rstrip("*")] = found.get(name.rstrip("*"), False) or bool(_GPU.search(gres))
    return [name for name, gpus in found.items() if not gpus], default


def gpu_types(lines: Iterable[str], partition: str) -> list[str]:
    """Of lines in FORMAT, the types of a partition's GPUs."""
    fields = (line.strip().split("|") for line in lines)
    gres = (field[4] for field in fields if field[0].rstrip("*") == partition)
    found = (match["type"] for one in gres for match in _GPU.finditer(one))
    return list(dict.fromkeys(filter(None, found)))


def refusal(options: Sequence[str]) -> str:
    """What sbatch says against a job with these options, without submitting it; '' when it would
    take it.
    """
    asked = ["sbatch", "--test-only", "--nodes=1", "--time=1", *options, "--wrap=true"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def cluster_name() -> str:
    """ClusterName of `scontrol show config`; '' where nothing answers."""
    lines = (line.partition("=") for line in _answer("scontrol", "show", "config"))
    return next(
        (value.strip().lower() for key, _, value in lines if key.strip() == "ClusterName"), ""
    )


def accounts() -> list[str]:
    """The accounts that the user may charge on this cluster, by sacctmgr; none where there is no
    accounting.
    """
    where = ["where", f"user={getpass.getuser()}"]
    cluster = cluster_name()
    where += [f"cluster={cluster}"] if cluster else []
    asked = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "associations",
        *where,
        "format=account",
    ]
    return sorted({line.strip() for line in _answer(*asked) if line.strip()})


def _answer(*command: str) -> list[str]:
    """The lines that a command of SLURM printed; none without the command, an answer in time, or
    success.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def site_of(lines: Iterable[str]) -> dict[str, Any]:
    """Site data from lines in FORMAT: one per partition and kind of node. A partition's first kind
    with GPUs counts.
    """
    queues: dict[str, Any] = {}
    default = None
    for line in lines:
        name, up, limit, _, gres = line.strip().split("|")
        gpu = _GPU.search(gres)
        if gpu is None or up != "up" or name.rstrip("*") in queues:
            continue
        if name.endswith("*"):
            default = name.rstrip("*")
        count = int(gpu["count"])
        queues[name.rstrip("*")] = {
            "gpu_type": gpu["type"] or "",
            "gpus_per_node": count,
            "gpus": [1],
            "ranges": [{"nodes": [1, 1], "walltime": ["0:01:00", clock(limit)]}],
        }
    if not queues:
        raise ConfigError(
            "site: slurm: no partition that is up has GPUs, says sinfo",
            key="site",
            remedy="name another site",
        )
    return {
        "description": "SLURM",
        "scheduler": "slurm",
        "queue_resource": "slurm_partition",
        "default_queue": default,
        "submission": {"cores": 4},
        "queues": queues,
    }


def clock(limit: str) -> str:
    """SLURM's '2-00:00:00', '30:00', '60' (minutes) or 'infinite' as hours:minutes:seconds."""
    total = _seconds(limit)
    if total is None:
        return f"{LONGEST_HOURS}:00:00"
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def _seconds(limit: str) -> int | None:
    found = _TIME.fullmatch(limit)
    if found is None:
        return None
    days, hours, minutes = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    last = int(found["rest"])
    return 86400 * days + 3600 * hours + 60 * minutes + (last if found["minutes"] else 60 * last)
