"""The scheduler's job that this process is in, and how its first node starts the same command on
the others.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
"""Where mpiexec tells its processes which one they are, from 0 on."""


def job_id() -> str:
    """Return the number of the SLURM or PBS job that this process is in; '' outside of jobs."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") or ""


def start_others(nodes: int, arguments: Sequence[str]) -> list["subprocess.Popen[bytes]"]:
    """Run `plm-embed ARGUMENTS` on the other `nodes` - 1 nodes of the job; return what to wait for.

    Each process learns from `--node`, or from mpiexec, which node it is. Raises PlmEmbedError when
    the job has fewer nodes, and when nothing can start processes on them.
    """
    hosts = allocated_hosts(os.environ)
    if len(hosts) < nodes:
        raise PlmEmbedError(
            f"{nodes} nodes asked for, the job has {len(hosts)} "
            f"({', '.join(hosts) or 'PBS_NODEFILE is not set'})\n"
            "a job over several nodes runs in PBS; elsewhere set the resource nodes to 1"
        )
    command = [sys.executable, "-P", "-m", "plm_embed", *arguments]
    lines = Path(os.environ["PBS_NODEFILE"]).read_text().split()
    others = other_hosts(hosts)[: nodes - 1]
    return [subprocess.Popen(words) for words in commands(others, command, os.environ, lines)]


def node_number(option: int | None) -> int:
    """Return which node of the job this is: as the option says, or mpiexec."""
    if option is not None:
        return option
    ranks = [int(os.environ[name]) for name in RANKS if name in os.environ]
    return 1 + ranks[0]


def allocated_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the hosts of a PBS job, each once, in order; none outside of one."""
    try:
        lines = Path(environment["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):
        return []
    return list(dict.fromkeys(lines))


def other_hosts(hosts: Sequence[str]) -> list[str]:
    """Return all hosts but this one, which is the first one where none has its name."""
    name = socket.gethostname().split(".")[0]
    here = next((host for host in hosts if host.split(".")[0] == name), hosts[0])
    return [host for host in hosts if host != here]


def commands(
    hosts: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    lines: Sequence[str],
) -> list[list[str]]:
    """Return the processes to start here so that `command` runs once on each host, in this folder.

    PALS mpiexec (Cray, Polaris) where it is, told not to end the others with one; else pbs_tmrsh,
    pbsdsh or ssh host by host. `lines` are those of the job's node file: pbsdsh counts hosts by
    them.
    """
    passed = ["env", *(f"{name}={environment[name]}" for name in PASSED_ON if name in environment)]
    if _pals_mpiexec():
        # PALS gives each rank a TMPDIR that is too long for Unix sockets (107 bytes); `env` puts
        # ours back
        temporary = [word for word in passed if word.startswith("TMPDIR=")]
        return [
            [
                *("mpiexec", "--no-abort-on-failure", "-n", str(len(hosts)), "--ppn", "1"),
                *("--hosts", ",".join(hosts), "--cpu-bind", "none"),
                *(["env", *temporary] if temporary else []),
                *command,
            ]
        ]
    remote = next((tool for tool in ("pbs_tmrsh", "pbsdsh", "ssh") if shutil.which(tool)), None)
    if remote is None:
        tools = "neither mpiexec (PALS), nor pbs_tmrsh, nor pbsdsh, nor ssh"
        raise PlmEmbedError(f"nothing here starts a process on {hosts[0]}: {tools}")
    calls = []
    for number, host in enumerate(hosts, 1):
        words = shlex.join([*passed, *command, "--node", str(number)])
        script = f"cd {shlex.quote(str(Path.cwd()))} && exec {words}"
        shell = ["/bin/sh", "-c", script]
        call = {
            "pbs_tmrsh": ["pbs_tmrsh", host, *shell],
            "pbsdsh": ["pbsdsh", "-n", str(lines.index(host)), "--", *shell],
            # which hands its words to a shell
            "ssh": ["ssh", "-o", "BatchMode=yes", host, script],
        }
        calls.append(call[remote])
    return calls


def _pals_mpiexec() -> bool:
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
