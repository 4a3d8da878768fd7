"""The daemons of a private SLURM: their files, their start and their end; see `cluster`."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cluster_files import GRES_CONF, INIT, MARIADB_CONF, SLURM_CONF, SLURMDBD_CONF, TASK_PROLOG
from processes import descendants, process_name

GPU_NODES = ("g1", "g2")
NODES = (*GPU_NODES, "c1")
GPUS = 4


class ClusterError(Exception):
    """The cluster, or one of its daemons, did not do what was asked of it."""


class Daemons:
    """Running daemons of a cluster, and their environment."""

    def __init__(self) -> None:
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._owner: IO[str] | None = None
        self.folder = Path()
        self.env: dict[str, str] = {}

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

    def set_scratch(self, folder: Path | None = None) -> None:
        """Have jobs see a folder as SLURM_TMPDIR, by default one that stands for the node's own
        disk.
        """
        own = f"{self.folder}/scratch/$SLURMD_NODENAME"
        (self.folder / "etc" / "scratch").write_text(str(folder or own))

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
            "PATH": search_path(),
            "SLURM_CONF": f"{etc}/slurm.conf",
            "MYSQL_UNIX_PORT": f"{self.folder}/mariadb.sock",
        }

    def _start_all(self) -> None:
        # Where each daemon sees this cluster's own files; elsewhere untouched.
        Path("/etc/slurm").mkdir(exist_ok=True)
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
        process = self._daemon(name)
        del self._daemons[name]
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

    def _daemon(self, name: str) -> "subprocess.Popen[bytes]":
        """Return what started a daemon. Raises ClusterError while there is none."""
        try:
            return self._daemons[name]
        except KeyError:
            raise ClusterError(f"{name} does not run") from None

    def _daemon_process(self, name: str) -> int:
        program = "slurmd" if name in NODES else name
        return next(
            process
            for process in descendants(self._daemon(name).pid)
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


def search_path() -> str:
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
