"""The limits of the SLURM cluster that this machine submits to, as `sinfo` tells them, in the form of site data."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

from plm_embed.errors import UserError

FORMAT = "%P|%a|%l|%D|%G"
"""Partition (* marks the default one), up or down, time limit, nodes, generic resources such as gpu:a100:4(S:0-3)."""
LONGEST_HOURS = 168
"""Asked for at most where a partition has no limit."""
_GPU = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?:(?P<count>\d+)")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?:(?P<hours>\d+):)?(?P<minutes>\d+):)?(?P<rest>\d+)")


def slurm_site() -> dict[str, Any]:
    """Partitions with GPUs, as queues. UserError without SLURM, without an answer, or without such a partition."""
    if shutil.which("sinfo") is None:
        raise UserError("--site slurm: there is no sinfo here; run it where you submit, or name another site")
    asked = ["sinfo", "--noheader", "--format", FORMAT]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        raise UserError("--site slurm: sinfo does not answer; try again later") from None
    if answer.returncode:
        raise UserError(f"--site slurm: sinfo says: {answer.stderr.strip() or answer.returncode}; try again later")
    return site_of(answer.stdout.splitlines())


def site_of(lines: Iterable[str]) -> dict[str, Any]:
    """Site data from lines in FORMAT: one per partition and kind of node. A partition's first kind with GPUs counts."""
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
        raise UserError("--site slurm: no partition that is up has GPUs, says sinfo; name another site")
    return {"profile": "slurm", "queue_resource": "slurm_partition", "default_queue": default, "queues": queues}


def clock(limit: str) -> str:
    """SLURM's '2-00:00:00', '30:00', '60' (minutes) or 'infinite' as hours:minutes:seconds."""
    total = _seconds(limit)
    if total is None:
        return f"{LONGEST_HOURS}:00:00"
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def minutes(limit: str) -> int | None:
    """SLURM's '2-00:00:00', '30:00' or '60' in whole minutes; None for 'infinite'."""
    total = _seconds(limit)
    return None if total is None else total // 60


def _seconds(limit: str) -> int | None:
    found = _TIME.fullmatch(limit)
    if found is None:
        return None
    days, hours, minutes = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    last = int(found["rest"])
    return 86400 * days + 3600 * hours + 60 * minutes + (last if found["minutes"] else 60 * last)
