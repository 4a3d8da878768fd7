"""Processes on the other nodes of a PBS job, which its first node starts."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from plm_embed.errors import PlmEmbedError

PASSED_ON = (
    *("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "LD_LIBRARY_PATH", "PBS_JOBID", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TRITON_CACHE_DIR"),
)
"""Environment that remote shells do not have by themselves: pbs_tmrsh starts with
PATH=/bin:/usr/bin.
"""
RANKS = ("PALS_RANKID", "PMI_RANK")
"""Variables in which mpiexec numbers its processes, from 0 on."""


def node_number() -> int:
    """Return which node of the job this one is, as mpiexec says; the first is none of its ranks."""
    return 1 + next(int(os.environ[name]) for name in RANKS if name in os.environ)


def start_nodes(nodes: int, arguments: Sequence[str]) -> list["subprocess.Popen[bytes]"]:
    """Run `plm-embed ARGUMENTS` on the other `nodes` - 1 nodes of a PBS job, in this folder; return
    the processes to wait for.

    PALS mpiexec (Cray, Polaris) does it where it is, else pbs_tmrsh host by host. Each process
    learns from `--node`, or from mpiexec, which node it is. Raises PlmEmbedError when the job has
    fewer nodes, and when nothing can start processes on them.
    """
    try:
        lines = Path(os.environ["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):
        lines = []
    hosts = list(dict.fromkeys(lines))
    if len(hosts) < nodes:
        raise PlmEmbedError(
            f"the job has {len(hosts)} of {nodes} nodes "
            f"({', '.join(hosts) or 'PBS_NODEFILE is not set'})\n"
            "a job over several nodes runs in PBS; elsewhere set the resource nodes to 1"
        )
    name = socket.gethostname().split(".")[0]
    first = next((host for host in hosts if host.split(".")[0] == name), hosts[0])
    hosts = [host for host in hosts if host != first][: nodes - 1]
    command = [sys.executable, "-P", "-m", "plm_embed", *arguments]
    if _has_pals():
        # told not to end the others with one. PALS gives each rank a TMPDIR that is too long for
        # Unix sockets (107 bytes); `env` puts ours back
        temporary = ["env", f"TMPDIR={os.environ['TMPDIR']}"] if "TMPDIR" in os.environ else []
        words = ["mpiexec", "--no-abort-on-failure", "-n", str(len(hosts)), "--ppn", "1"]
        words += ["--hosts", ",".join(hosts), "--cpu-bind", "none", *temporary, *command]
        return [subprocess.Popen(words)]
    if not shutil.which("pbs_tmrsh"):
        tools = "neither mpiexec (PALS) nor pbs_tmrsh"
        raise PlmEmbedError(f"cannot start a process on {hosts[0]}: {tools}")
    variables = [f"{name}={os.environ[name]}" for name in PASSED_ON if name in os.environ]
    processes = []
    for number, host in enumerate(hosts, 1):
        words = ["env", *variables, *command, "--node", str(number)]
        script = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(words)}"
        processes.append(subprocess.Popen(["pbs_tmrsh", host, "/bin/sh", "-c", script]))
    return processes


def _has_pals() -> bool:
    """Tell whether mpiexec is one that can leave the other ranks alone when one fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["mpiexec", "--help"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return "--no-abort-on-failure" in answer.stdout + answer.stderr
    return False
