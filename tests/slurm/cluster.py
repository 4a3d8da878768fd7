"""A private, real SLURM on this machine, for tests.

`with Cluster() as cluster:` starts slurmctld, slurmdbd (on a MariaDB of its own), munge and one
slurmd for each virtual node: g1 and g2 with four virtual GPUs each, and c1 without. Everything
listens on the loopback interface only, and all state lies in one temporary folder.

Each daemon lives in a process and mount namespace of its own, so that a virtual node has its own
host name and process table, and killing one process is a power cut: nothing of the node survives.
The kernel kills all of them when the Python process that started the cluster ends, however it ends.

By hand, `python tests/slurm/cluster.py bash` gives a shell in which sbatch, squeue and the others
speak to such a cluster, for as long as the shell lives.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from daemons import GPU_NODES, ClusterError, Daemons, search_path
from processes import descendants, process_name

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd", "unshare", "setpriv")
PREFIX = "plm-slurm-"
# seconds after which a folder without a locked `owner` file is no cluster that is being started
STARTING = 60.0


def missing() -> str | None:
    """Say in one line why no cluster can run on this machine, or return None."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    if absent:
        return (
            f"no {', '.join(absent)} here; get SLURM by `make slurm-packages` or "
            f"apt-get install {' '.join(PACKAGES)}"
        )
    if os.geteuid() != 0:
        return "only root can start the virtual nodes (device files, namespaces)"
    if (
        subprocess.call(
            ["unshare", "--pid", "--mount", "--uts", "--fork", "true"], stderr=subprocess.DEVNULL
        )
        != 0
    ):
        return "this root may not make namespaces (a container needs --privileged)"
    return None


class Cluster(Daemons):
    """A running SLURM.

    `env` is what a process needs to speak to it. The attribute `folder` has `log/` and, for each
    node, `scratch/{node}`: that node's own disk, in jobs called SLURM_TMPDIR. `python` runs
    Snakemake there.
    """

    python = sys.executable

    def __enter__(self) -> Self:
        reason = missing()
        if reason is not None:
            raise ClusterError(reason)
        remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owner = (self.folder / "owner").open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        try:
            self._configure()
            self._start_all()
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_all()

    def jobs(self, *states: str) -> dict[str, str]:
        """Return {job: node} of the jobs in these states, by default the live ones. A pending job
        has no node: "".
        """
        chosen = ["--states", ",".join(states)] if states else []
        lines = self.run(
            "squeue", "--noheader", "--array", "--format", "%i|%N", *chosen
        ).splitlines()
        return dict(line.split("|", 1) for line in lines)

    def processes(self, node: str) -> list[int]:
        """Return the ids, on this machine, of all processes of a node's jobs: below each
        slurmstepd.
        """
        return [process for step in self.steps(node) for process in descendants(step)]

    def steps(self, node: str) -> list[int]:
        """Return the ids, on this machine, of a node's slurmstepd: one for each step of each job;
        none while the node is without power.
        """
        daemon = self._daemons.get(node)
        inside = descendants(daemon.pid) if daemon else []
        return [process for process in inside if process_name(process) == "slurmstepd"]

    def inside(self, node: str) -> tuple[str, ...]:
        """Return the command before one that is to see the files that a node sees."""
        return ("nsenter", f"--target={self._daemon_process(node)}", "--mount")

    def kill_node(self, node: str) -> None:
        """Cut a node's power: no process of it gets a signal that it could handle."""
        self._kill(node)
        # The controller's own verdict would come after SlurmdTimeout.
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power cut")

    def kill_controller(self) -> None:
        """End slurmctld as a power cut does; it keeps what it had saved."""
        self._kill("slurmctld")

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D")
        self.wait_for("slurmctld", lambda: "is UP" in self.run("scontrol", "ping"))

    def start_node(self, node: str) -> None:
        """Boot a node and wait until it takes jobs."""
        self._start(node, "slurmd", "-D", "-N", node)
        self._wait_for_nodes(node)

    @contextlib.contextmanager
    def silent(self, daemon: str) -> Iterator[None]:
        """Keep a daemon (slurmctld, slurmdbd) from answering for the length of the block."""
        process = self._daemon_process(daemon)
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # killed in the meantime
                os.kill(process, signal.SIGCONT)

    @contextlib.contextmanager
    def mounted(self, kind: str, folder: Path) -> Iterator[None]:
        """Mount a filesystem on a folder of each GPU node: "network", "memory" (1 MB) or
        "read-only".
        """
        network = (sys.executable, str(Path(__file__).with_name("network_folder.py")), str(folder))
        commands = {
            "network": network,
            "memory": ("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)),
            "read-only": ("mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)),
        }
        folder.mkdir(parents=True)
        there = [self.inside(node) for node in GPU_NODES]
        processes = [subprocess.Popen([*enter, *commands[kind]]) for enter in there]
        try:
            point = ("mountpoint", "-q", str(folder))
            self.wait_for(
                f"{folder} ({kind})", lambda: [self.run(*enter, *point) for enter in there]
            )
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for enter in there:
                unmount = (
                    *enter,
                    "umount",
                    "--lazy",
                    "--internal-only",
                    "--no-canonicalize",
                    str(folder),
                )
                # what stays ends with the node
                subprocess.run(unmount, check=False, capture_output=True)


def remove_abandoned() -> None:
    """Delete the folders of clusters whose session was killed; their processes ended with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if (folder / "owner").exists():
                with (folder / "owner").open() as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            elif time.time() - folder.stat().st_mtime > STARTING:
                shutil.rmtree(folder)


if __name__ == "__main__":
    with Cluster() as bed:
        sys.exit(subprocess.call(sys.argv[1:] or ["sinfo"], env=bed.env))
