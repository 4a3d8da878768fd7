"""Which site this is, by names that the site files hold; never by a guess."""

import shutil
import socket
from fnmatch import fnmatchcase
from typing import NamedTuple

from plm_embed.sites import slurm
from plm_embed.sites.data import read_site, slurm_sites


class Here(NamedTuple):
    """A site by the name that `read_site` takes, and what it was recognized by, in words."""

    site: str
    why: str


def scheduler_here() -> str:
    """The scheduler whose commands are installed: pbs, slurm, or ''."""
    commands = {"pbs": "qsub", "slurm": "sbatch"}
    return next((name for name, command in commands.items() if shutil.which(command)), "")


def recognize(scheduler: str) -> Here:
    """The site of this machine under `scheduler`. Where no site file names it: `generic` under pbs,
    `slurm` under slurm, '' where no SLURM answers.
    """
    return _by_pbs() if scheduler == "pbs" else _by_slurm()


def _by_pbs() -> Here:
    try:
        from snakemake_executor_plugin_pbs.recognize import this_site
    except ImportError:
        return Here("generic", "the PBS executor is not installed: pip install -e executors/pbs")
    return Here(*this_site())


def _by_slurm() -> Here:
    cluster, host = slurm.cluster_name(), socket.gethostname().lower()
    for kind, name in (("cluster", cluster), ("host", host)):
        for site in slurm_sites():
            patterns = read_site(site).get("recognize", {}).get(f"{kind}s", [])
            if name and any(fnmatchcase(name, pattern) for pattern in patterns):
                return Here(site, f"by the {kind} {name}")
    if cluster:
        return Here("slurm", f"cluster {cluster}")
    return Here("", slurm.SILENT if shutil.which("scontrol") else "no SLURM here")
