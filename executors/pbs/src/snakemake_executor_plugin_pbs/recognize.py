"""Which site this is: by the name of the PBS server that the commands here speak to, else by the
name of this machine.

The names are data of the site files (`recognize:`). What no file names is `generic`; nothing is
guessed.
"""

import os
import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from snakemake_interface_common.exceptions import WorkflowError

from .site import read_site, shipped_sites


class Recognized(NamedTuple):
    """A shipped site and what it was recognized by, in words."""

    site: str
    why: str


def this_site() -> Recognized:
    """The shipped site whose file names this PBS server or this machine, or `generic`."""
    server, host = server_name(), socket.gethostname().lower()
    names = {server: f"by the PBS server {server}", host: f"by the host {host}"}
    for site in shipped_sites():
        for pattern in read_site(site).get("recognize", []):
            for name, why in names.items():
                if fnmatchcase(name, pattern):
                    return Recognized(site, why)
    known = (
        f"no site file names the PBS server {server}" if server else "no PBS server is known here"
    )
    return Recognized("generic", f"{known}, nor the host {host}")


def chosen_site(named: str | None) -> Recognized:
    """The site that was named, else this one. WorkflowError where a shipped site was named and the
    commands here speak to the server of another.
    """
    here = this_site()
    if not named:
        return here
    server = server_name()
    elsewhere = named in shipped_sites() and read_site(named).get("recognize") and server
    if elsewhere and here.site != named:
        raise WorkflowError(
            f"--pbs-site or the profile says {named}, but the PBS server here is {server}. Use "
            "--pbs-site generic or a site file of your own, and set --pbs-queue and the resources "
            "nodes, gpu, mem_mb and runtime to what this cluster has."
        )
    return Recognized(named, "as named")


def server_name() -> str:
    """The name of the default PBS server, where PBS's own commands look it up; '' without one."""
    named = os.environ.get("PBS_DEFAULT") or os.environ.get("PBS_SERVER") or _configured()
    return named.partition(":")[0].strip().lower()


def _configured() -> str:
    """PBS_SERVER of pbs.conf."""
    try:
        path = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"))
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line.partition("=") for line in text.splitlines())
    return next((value for key, _, value in lines if key.strip() == "PBS_SERVER"), "")
