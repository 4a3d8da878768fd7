"""One submission over several nodes: the same command on each, started by what the site has.

The nodes share nothing but the filesystem. Claims keep them off each other's buckets, and any of
them writes the submission's record when all buckets are complete; so a node that dies does not end
the others.
"""

import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from plm_embed.errors import PassingError, PlmEmbedError

log = logging.getLogger(__name__)
PASSED_ON = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "PBS_JOBID", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TRITON_CACHE_DIR"),
)
"""Environment that remote shells do not have by themselves: pbs_tmrsh starts with
PATH=/bin:/usr/bin.
"""

SECONDS_FOR_STRAGGLERS = 5.0
"""A lost node never reports. The output says that all buckets are complete, which those that live
see in a second.
"""


SECONDS_TO_PUBLISH = 60.0
"""For what a node does at a SIGTERM. When this process ends, so may the job, and all its nodes."""


def on_all_nodes(nodes: int, arguments: Sequence[str], output: Path) -> None:
    """Run `plm-embed ARGUMENTS` once on each of the job's `nodes` nodes and wait until `output` is
    there or all ended.

    Raises PlmEmbedError when the job has fewer nodes, when nothing can start processes on them, and
    when all ended without `output`.
    """
    output.unlink(missing_ok=True)
    hosts = allocated_hosts(os.environ)
    if len(hosts) < nodes:
        raise PlmEmbedError(
            f"{nodes} nodes asked for, the job has {len(hosts)} "
            f"({', '.join(hosts) or 'PBS_NODEFILE is not set'})\n"
            "a submission over several nodes runs in a PBS job; elsewhere set the resource nodes "
            "to 1"
        )
    command = [sys.executable, "-m", "plm_embed", *arguments]
    # by way of `finally`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("plm-embed: stopped by a signal"))
    lines = Path(os.environ["PBS_NODEFILE"]).read_text().split()
    started = [
        subprocess.Popen(words) for words in commands(hosts[:nodes], command, os.environ, lines)
    ]
    log.info("started on %s", ", ".join(hosts[:nodes]))
    try:
        _wait(started, output)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut short what follows
        _end(started, 0 if output.exists() else SECONDS_TO_PUBLISH)
    if not output.exists():
        codes = ", ".join(str(process.returncode) for process in started)
        raise PassingError(
            f"not all buckets are embedded (exit codes of the nodes: {codes}); the reasons are "
            "above"
        )


def allocated_hosts(environment: Mapping[str, str]) -> list[str]:
    """The hosts of a PBS job, each once, in order; none outside of one."""
    try:
        lines = Path(environment["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):
        return []
    return list(dict.fromkeys(lines))


def commands(
    hosts: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    lines: Sequence[str],
) -> list[list[str]]:
    """The processes to start here so that `command` runs once on each host, in this folder.

    PALS mpiexec (Cray, Polaris) where it is, told not to end the others with one; else pbs_tmrsh,
    pbsdsh or ssh host by host, and a plain process for this host. `lines` are those of the job's
    node file: pbsdsh counts hosts by them.
    """
    passed = ["env", *(f"{name}={environment[name]}" for name in PASSED_ON if name in environment)]
    if _pals_mpiexec():
        per_node = [
            "-n",
            str(len(hosts)),
            "--ppn",
            "1",
            "--hosts",
            ",".join(hosts),
            "--cpu-bind",
            "none",
        ]
        # PALS gives each rank a TMPDIR that is too long for Unix sockets (107 bytes); `env` puts
        # ours back
        temporary = [word for word in passed if word.startswith("TMPDIR=")]
        return [
            [
                "mpiexec",
                "--no-abort-on-failure",
                *per_node,
                *(["env", *temporary] if temporary else []),
                *command,
            ]
        ]
    remote = next((tool for tool in ("pbs_tmrsh", "pbsdsh", "ssh") if shutil.which(tool)), None)
    here = socket.gethostname().split(".")[0]
    found = []
    for host in hosts:
        if host.split(".")[0] == here:
            found.append(list(command))
        elif remote is None:
            tools = "neither mpiexec (PALS), nor pbs_tmrsh, nor pbsdsh, nor ssh"
            raise PlmEmbedError(f"nothing here starts a process on {host}: {tools}")
        else:
            script = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join([*passed, *command])}"
            shell = ["/bin/sh", "-c", script]
            call = {
                "pbs_tmrsh": ["pbs_tmrsh", host, *shell],
                "pbsdsh": ["pbsdsh", "-n", str(lines.index(host)), "--", *shell],
                # which hands its words to a shell
                "ssh": ["ssh", "-o", "BatchMode=yes", host, script],
            }
            found.append(call[remote])
    return found


def _pals_mpiexec() -> bool:
    """Whether mpiexec is one that can leave the other ranks alone when one fails."""
    if shutil.which("mpiexec") is None:
        return False
    try:
        said = subprocess.run(
            ["mpiexec", "--help"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "--no-abort-on-failure" in said.stdout + said.stderr


def _end(started: Sequence["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Ask all to end, and wait so long until they have."""
    until = time.monotonic() + seconds
    for process in started:
        process.terminate()
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0))


def _wait(started: Sequence["subprocess.Popen[bytes]"], output: Path) -> None:
    """Until all have ended, or until `output` is there and stragglers had their time."""
    complete: float | None = None
    while any(process.poll() is None for process in started):
        if complete is None and output.exists():
            complete = time.monotonic()
        if complete is not None and time.monotonic() - complete > SECONDS_FOR_STRAGGLERS:
            log.warning("a node does not answer; all buckets are complete without it")
            return
        time.sleep(0.5)
