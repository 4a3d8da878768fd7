"""Recognition of the site by the name of its PBS server.

The names are data of the site files (`recognize:`). A server that no file names is `generic`;
nothing is guessed.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from snakemake_interface_common.exceptions import WorkflowError

from .site import load_site, shipped_sites


class Recognized(NamedTuple):
    """A site, and in words how it was recognized."""

    site: str
    why: str


def this_site() -> Recognized:
    """Return the shipped site whose file names this PBS server, or `generic`."""
    server = server_name()
    for site in shipped_sites():
        if any(fnmatchcase(server, pattern) for pattern in load_site(site).recognize):
            return Recognized(site, f"by the PBS server {server}")
    known = f"no site file names the PBS server {server}" if server else "no PBS server is named"
    return Recognized("generic", known)


def chosen_site(named: str | None) -> Recognized:
    """Return the site that was named, else the recognized one.

    Raises WorkflowError where the named site is a shipped one, and the server that of another.
    """
    here, server = this_site(), server_name()
    if not named or named == here.site:
        return here
    if server and named in shipped_sites() and load_site(named).recognize:
        raise WorkflowError(
            f"--pbs-site or the profile says {named}, but the PBS server here is {server}. Use "
            "--pbs-site generic or a site file of your own, and set --pbs-queue and the resources "
            "nodes, gpu, mem_mb and runtime to what this cluster has."
        )
    return Recognized(named, "as named")


def server_name() -> str:
    """Return the name of the default PBS server, where PBS's own commands look it up; '' without
    one.
    """
    try:
        path = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"))
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    named = os.environ.get("PBS_DEFAULT") or os.environ.get("PBS_SERVER")
    return (named or settings.get("PBS_SERVER", "")).partition(":")[0].strip().lower()
