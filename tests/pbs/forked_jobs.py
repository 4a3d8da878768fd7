"""Jobs on nodes of PBS as processes that are forked here, so that one begins in no time and may be
killed.
"""

import contextlib
import multiprocessing
import os
import random
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import esm  # noqa: F401 -- loaded once, for all that is forked
import torch

from plm_embed.cli import main as cli
from plm_embed.jobs import job, other_nodes, process, worker  # noqa: F401 -- the same
from plm_embed.master import gather, validate  # noqa: F401 -- the same

FORK = multiprocessing.get_context("fork")
NODES = ("node01", "node02")


def forked(run: Callable[[], None], log: Path, name: str = NODES[0]) -> int:
    """A process in a session of its own that runs `run` as host `name`; its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with log.open("ab") as handle:
            os.dup2(handle.fileno(), 1)
            os.dup2(handle.fileno(), 2)
        socket.gethostname = lambda: name
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr, flush=True)
    finally:
        sys.stderr.flush()
        os._exit(code)


def command(*words: str | Path) -> Callable[[], None]:
    """`plm-embed WORDS`."""

    def run() -> None:
        sys.argv = ["plm-embed", *map(str, words)]
        cli.main()

    return run


class Node:
    """Processes that the first node starts on another one, forked here."""

    def __init__(self, words: list[str]) -> None:
        name, arguments = words[1], shlex.split(words[-1])
        arguments = arguments[arguments.index("plm_embed") + 1 :]
        self.pid = forked(command(*arguments), Path("log"), name)
        Path(f"{name}.pid").write_text(str(self.pid))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def prepare_process() -> None:
    """Have all processes forked, and waits that fit campaigns of seconds."""
    torch.set_num_threads(1)

    def serve(connection: Connection, *arguments: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for link in Path(
            "/proc/self/fd"
        ).iterdir():  # the ends of pipes that a spawned process would not have
            with contextlib.suppress(FileNotFoundError):
                if (
                    link.readlink().name.startswith("socket:")
                    and int(link.name) != connection.fileno()
                ):
                    os.dup2(nothing, int(link.name))
        process.serve(connection, *arguments)

    def new_process(target: object, args: tuple[Any, ...], daemon: bool) -> Any:  # noqa: ARG001 (as multiprocessing has it)
        return FORK.Process(target=serve, args=args, daemon=daemon)

    process.CONTEXT = SimpleNamespace(Pipe=FORK.Pipe, Process=new_process)
    other_nodes.subprocess = SimpleNamespace(Popen=Node)  # type: ignore[assignment]
    other_nodes._has_pals = lambda: False
    job.SECONDS_FOR_CACHES = 0.0


class Job:
    """One job: its first node, and the other one that it starts."""

    def __init__(self, folder: Path, number: int, words: list[str | Path]) -> None:
        for name in NODES:
            (folder / f"{name}.pid").unlink(missing_ok=True)
        os.environ["PBS_JOBID"] = f"{number}.pbs01"
        self.folder = folder
        self.first = forked(command(*words), folder / "log")
        self.code: int | None = None

    def running(self) -> bool:
        if self.code is None:
            ended, status = os.waitpid(self.first, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
                self.signal(signal.SIGKILL)  # as PBS does with what a job leaves behind
        return self.code is None

    def nodes(self) -> list[int]:
        found = [self.first]
        for name in NODES[1:]:
            with contextlib.suppress(OSError, ValueError):
                found.append(int((self.folder / f"{name}.pid").read_text()))
        return found

    def workers(self) -> list[int]:
        """Members of the nodes' process groups that are not their first."""
        nodes = self.nodes()
        members = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if (
                    int(fields[2]) in nodes
                    and int(stat.parent.name) not in nodes
                    and fields[0] != "Z"
                ):
                    members.append(int(stat.parent.name))
        return members

    def signal(self, number: int) -> None:
        for group in self.nodes():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)

    def kill(self, kind: str, dice: random.Random) -> bool:
        """Return whether there was something to kill."""
        if kind == "walltime":
            self.signal(signal.SIGTERM)
            time.sleep(dice.uniform(0, 0.5))
        if kind in {"walltime", "preempted"}:
            self.signal(signal.SIGKILL)
            return True
        found = {"worker": self.workers(), "node": self.nodes()}[kind]
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(dice.choice(found), signal.SIGKILL)
            return True
        return False


def run_to_end(words: list[str | Path], folder: Path) -> None:
    """One step that is not disturbed; RuntimeError with its log when it fails."""
    _, status = os.waitpid(forked(command(*words), folder / "log"), 0)
    if status:
        raise RuntimeError((folder / "log").read_text()[-3000:])
