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
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from cluster_files import GRES_CONF, INIT, MARIADB_CONF, SLURM_CONF, SLURMDBD_CONF, TASK_PROLOG

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd", "unshare", "setpriv")
GPU_NODES = ("g1", "g2")
NODES = (*GPU_NODES, "c1")
GPUS = 4
PREFIX = "plm-slurm-"
# seconds after which a folder without a locked `owner` file is no cluster that is being started
STARTING = 60.0


class ClusterError(Exception):
    """The cluster, or one of its daemons, did not do what was asked of it."""


def missing() -> str | None:
    """Say in one line why no cluster can run on this machine, or return None."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
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


class Cluster:
    """A running SLURM.

    `env` is what a process needs to speak to it. The attribute `folder` has `log/` and, for each
    node, `scratch/{node}`: that node's own disk, in jobs called SLURM_TMPDIR.
    """

    def __init__(self) -> None:
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._owner: IO[str] | None = None
        self.folder = Path()
        self.env: dict[str, str] = {}

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

    def run(self, *command: str, timeout: float = 300) -> str:
        """Run a command with the cluster's environment; return what it printed, or raise
        ClusterError.
        """
        done = subprocess.run(
            command, check=False, env=self.env, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode != 0:
            raise ClusterError(
                f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def jobs(self, *states: str) -> dict[str, str]:
        """Return {job: node} of the jobs in these states, by default the live ones. A pending job
        has no node: "".
        """
        chosen = ["--states", ",".join(states)] if states else []
        lines = self.run(
            "squeue", "--noheader", "--array", "--format", "%i|%N", *chosen
        ).splitlines()
        return dict(line.split("|", 1) for line in lines)

    def wait_for(self, what: str, condition: Callable[[], object], *, timeout: float = 600) -> None:
        """Return once `condition()` is true; ClusterError after `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(ClusterError):
                if condition():
                    return
            if time.monotonic() > end:
                raise ClusterError(
                    f"{what}: not within {timeout:.0f} s; logs in "
                    f"{self.folder}/log\n{self._last_words()}"
                )
            time.sleep(0.1)

    def processes(self, node: str) -> list[int]:
        """Return the ids, on this machine, of all processes of a node's jobs: below each
        slurmstepd.
        """
        return [process for step in self.steps(node) for process in descendants(step)]

    def steps(self, node: str) -> list[int]:
        """Return the ids, on this machine, of a node's slurmstepd: one for each step of each
        job.
        """
        return [
            process
            for process in descendants(self._daemons[node].pid)
            if process_name(process) == "slurmstepd"
        ]

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
            os.kill(process, signal.SIGCONT)

    def set_scratch(self, folder: Path | None = None) -> None:
        """Have jobs see a folder as SLURM_TMPDIR, by default one that stands for the node's own
        disk.
        """
        own = f"{self.folder}/scratch/$SLURMD_NODENAME"
        (self.folder / "etc" / "scratch").write_text(str(folder or own))

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
                subprocess.run(
                    unmount, check=False, capture_output=True
                )  # what stays ends with the node

    def _configure(self) -> None:
        for name in (
            "etc",
            "state",
            "log",
            "devices",
            "database",
            *(f"{d}/{n}" for d in ("spool", "scratch") for n in NODES),
        ):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        etc = self.folder / "etc"
        values = {
            "folder": self.folder,
            "ports": _free_ports(2 + len(NODES)),
            "gpus": GPUS,
            "last": GPUS - 1,
        }
        (etc / "slurm.conf").write_text(SLURM_CONF.format(**values))
        (etc / "gres.conf").write_text(GRES_CONF.format(**values))
        (etc / "mariadb.cnf").write_text(MARIADB_CONF.format(**values))
        (etc / "hosts").write_text(
            f"127.0.0.1 localhost head {' '.join(NODES)} {socket.gethostname()}\n"
        )
        for name, mode, text in (
            ("slurmdbd.conf", 0o600, SLURMDBD_CONF.format(**values)),
            ("task_prolog", 0o755, TASK_PROLOG.format(**values)),
        ):
            (etc / name).write_text(text)
            (etc / name).chmod(mode)
        self.set_scratch()
        key = etc / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        # Device numbers without a driver: nobody can open them, and SLURM takes nothing but device
        # files for GPUs.
        for node in GPU_NODES:
            for gpu in range(GPUS):
                os.mknod(
                    self.folder / "devices" / f"{node}-nvidia{gpu}",
                    0o600 | 0o020000,
                    os.makedev(240, gpu),
                )
        self.env = {
            **os.environ,
            "PATH": _path(),
            "SLURM_CONF": f"{etc}/slurm.conf",
            "MYSQL_UNIX_PORT": f"{self.folder}/mariadb.sock",
        }

    def _start_all(self) -> None:
        Path("/etc/slurm").mkdir(
            exist_ok=True
        )  # Where each daemon sees this cluster's own files; elsewhere untouched.
        folder, etc = self.folder, self.folder / "etc"
        install = (
            "mariadb-install-db",
            f"--defaults-file={etc}/mariadb.cnf",
            "--user=root",
            "--skip-test-db",
        )
        self.run(*install, "--auth-root-authentication-method=socket")
        self._start("mariadbd", "mariadbd", f"--defaults-file={etc}/mariadb.cnf")
        files = (
            f"--key-file={etc}/munge.key",
            f"--socket={folder}/munge.sock",
            f"--log-file={folder}/log/munged.log",
        )
        state = (f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed")
        self._start(
            "munged", "munged", "--foreground", "--force", "--num-threads=2", *files, *state
        )
        self.wait_for("database", (folder / "mariadb.sock").exists)
        self.wait_for("munge", (folder / "munge.sock").exists)
        self._start("slurmdbd", "slurmdbd", "-D")
        # Accounts have to be there before the controller asks for them.
        self.wait_for(
            "accounting", lambda: self.run("sacctmgr", "-i", "-Q", "add", "cluster", "bed")
        )
        self.run(
            "sacctmgr", "-i", "-Q", "add", "account", "lab", "Description=lab", "Organization=lab"
        )
        self.run("sacctmgr", "-i", "-Q", "add", "user", "root", "account=lab")
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self._start(node, "slurmd", "-D", "-N", node)
        self._wait_for_nodes(*NODES)

    def _start(self, name: str, *command: str) -> None:
        tie = (
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--fork",
            "--kill-child",
            "--pid",
            "--mount-proc",
            "--uts",
        )
        host = name if name in NODES else "head"
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [*tie, "bash", "-c", INIT, "init", str(self.folder), host, *command],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        # The child of `unshare` is the first process of its namespace; the kernel lets none of the
        # others outlive it.
        process = self._daemons.pop(name)
        inside = descendants(process.pid)
        process.kill()
        process.wait()
        end = time.monotonic() + 300
        while any(process_name(pid) for pid in inside) and time.monotonic() < end:
            time.sleep(0.02)

    def _stop_all(self) -> None:
        for name in reversed(list(self._daemons)):
            self._kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._owner is not None:
            self._owner.close()

    def _daemon_process(self, name: str) -> int:
        program = "slurmd" if name in NODES else name
        return next(
            process
            for process in descendants(self._daemons[name].pid)
            if process_name(process) == program
        )

    def _wait_for_nodes(self, *nodes: str) -> None:
        def ready() -> bool:
            lines = self.run(
                "sinfo", "--noheader", "--Node", "--format", "%N %T", "--nodes", ",".join(nodes)
            ).split("\n")
            states = dict(line.split() for line in lines if line)
            return set(states) == set(nodes) and set(states.values()) <= {
                "idle",
                "mixed",
                "allocated",
                "completing",
            }

        self.wait_for(f"nodes {', '.join(nodes)}", ready)

    def _last_words(self) -> str:
        words = []
        for log in sorted((self.folder / "log").iterdir()):
            words += [
                f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-3:]
            ]
        return "\n".join(words)


def _path() -> str:
    """Return PATH with the system folders where Debian keeps the daemons."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    """Return ports below the range that outgoing connections take, of which none is in use."""
    while True:
        first = random.randrange(12000, 32000 - count)
        ports = list(range(first, first + count))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


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


def process_name(process: int) -> str:
    """Return a process's name, or nothing when it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    name, state = stat.split("(", 1)[1].rsplit(")", 1)
    return "" if state.split()[0] in "ZX" else name


def descendants(process: int) -> list[int]:
    """Return all processes below this one."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


if __name__ == "__main__":
    with Cluster() as bed:
        sys.exit(subprocess.call(sys.argv[1:] or ["sinfo"], env=bed.env))
