"""The nodes of a scheduler's job, and how the first one starts the same command on the others."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
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


def job_id() -> str:
    """Return the number of the SLURM or PBS job that this process is in; '' outside of jobs."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") or ""


def node_number(option: int | None) -> int:
    """Return which node of the job this is: as the option says, or mpiexec."""
    if option is not None:
        return option
    return 1 + next(int(os.environ[name]) for name in RANKS if name in os.environ)


def start_others(nodes: int, arguments: Sequence[str]) -> list["subprocess.Popen[bytes]"]:
    """Run `plm-embed ARGUMENTS` on the other `nodes` - 1 nodes of a PBS job, in this folder; return
    what to wait for.

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
            f"{nodes} nodes asked for, the job has {len(hosts)} "
            f"({', '.join(hosts) or 'PBS_NODEFILE is not set'})\n"
            "a job over several nodes runs in PBS; elsewhere set the resource nodes to 1"
        )
    name = socket.gethostname().split(".")[0]
    here = next((host for host in hosts if host.split(".")[0] == name), hosts[0])
    others = [host for host in hosts if host != here][: nodes - 1]
    command = [sys.executable, "-P", "-m", "plm_embed", *arguments]
    if _has_pals():
        # told not to end the others with one. PALS gives each rank a TMPDIR that is too long for
        # Unix sockets (107 bytes); `env` puts ours back
        temporary = ["env", f"TMPDIR={os.environ['TMPDIR']}"] if "TMPDIR" in os.environ else []
        words = ["mpiexec", "--no-abort-on-failure", "-n", str(len(others)), "--ppn", "1"]
        words += ["--hosts", ",".join(others), "--cpu-bind", "none", *temporary, *command]
        return [subprocess.Popen(words)]
    if not shutil.which("pbs_tmrsh"):
        tools = "neither mpiexec (PALS) nor pbs_tmrsh"
        raise PlmEmbedError(f"nothing here starts a process on {others[0]}: {tools}")
    passed = [f"{name}={os.environ[name]}" for name in PASSED_ON if name in os.environ]
    started = []
    for number, host in enumerate(others, 1):
        words = ["env", *passed, *command, "--node", str(number)]
        script = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(words)}"
        started.append(subprocess.Popen(["pbs_tmrsh", host, "/bin/sh", "-c", script]))
    return started


def _has_pals() -> bool:
    """Tell whether mpiexec is one that can leave the other ranks alone when one fails."""
    if shutil.which("mpiexec") is None:
        return False
    try:
        answer = subprocess.run(
            ["mpiexec", "--help"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "--no-abort-on-failure" in answer.stdout + answer.stderr
