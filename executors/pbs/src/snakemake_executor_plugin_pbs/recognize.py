"""Which site this is: by the name of the PBS server that the commands here speak to, else by the
name of this machine.

The names are data of the site files (`recognize:`). What no file names is `generic`; nothing is
guessed.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from .site import read_site, shipped_sites

SITE_VARIABLE = "SNAKEMAKE_PBS_SITE"
"""The site, where a workflow has recognized it before the executor starts; --pbs-site goes before
it.
"""
PATIENCE = 20.0
"""Seconds in which `qstat -B` has to answer."""


class Recognized(NamedTuple):
    """A shipped site and what it was recognized by, in words."""

    site: str
    why: str


def this_site() -> Recognized:
    """The shipped site whose file names this PBS server or this machine, or `generic`."""
    server = server_name()
    hosts = list(dict.fromkeys([socket.gethostname(), socket.getfqdn()]))
    for kind, names, words in (
        ("servers", [server] if server else [], f"by the PBS server {server}"),
        ("hosts", hosts, f"by the host {hosts[0]}"),
    ):
        for site in shipped_sites():
            if _fit(names, read_site(site).get("recognize", {}).get(kind, [])):
                return Recognized(site, words)
    known = (
        f"no site file names the PBS server {server}" if server else "no PBS server is known here"
    )
    return Recognized("generic", f"{known}, nor the host {hosts[0]}")


def server_name() -> str:
    """The name of the default PBS server, as PBS's own commands look it up, or as it answers
    itself; '' without one.
    """
    named = (
        os.environ.get("PBS_DEFAULT")
        or os.environ.get("PBS_SERVER")
        or _configured()
        or _answered()
    )
    return named.partition(":")[0].strip().lower()


def _configured() -> str:
    """PBS_SERVER of pbs.conf."""
    try:
        text = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text(
            encoding="utf-8", errors="replace"
        )
    except OSError:
        return ""
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "PBS_SERVER"), "")


def _answered() -> str:
    """The server's name by `qstat -B -f`: its first line is `Server: NAME`."""
    if shutil.which("qstat") is None:
        return ""
    try:
        done = subprocess.run(
            ["qstat", "-B", "-f"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = done.stdout.partition("\n")[0]
    return first.removeprefix("Server:").strip() if first.startswith("Server:") else ""


def _fit(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns for name in names)
