"""What the stand-in knows: its nodes and queues, and its jobs with the attributes that qstat
shows.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER = "pbs01"
RESOURCES = {
    "ncpus",
    "ngpus",
    "mem",
    "walltime",
    "select",
    "place",
    "filesystems",
    "mpiprocs",
    "ompthreads",
    "host",
}
RESOURCES |= {"system", "jobfs", "storage", "nodes", "wd", "gpu_type"}


@dataclass
class Queue:
    """One queue; times in seconds, None where there is no limit. `route_to` makes it a routing
    queue.
    """

    name: str
    walltime: tuple[int | None, int | None] = (None, None)
    nodes: tuple[int | None, int | None] = (None, None)
    enabled: bool = True
    started: bool = True
    open_to_user: bool = True
    max_queued: int | None = None
    route_to: str | None = None


def lab_queues() -> dict[str, Queue]:
    """The queues of the recorded OpenPBS."""
    queues = [
        Queue("workq"),
        Queue("debug", walltime=(10, 3600), nodes=(None, 2)),
        Queue("prod", walltime=(300, 86400), nodes=(10, 10)),
        Queue("stoppedq", started=False),
        Queue("disabledq", enabled=False),
        Queue("route1", route_to="debug"),
    ]
    return {queue.name: queue for queue in queues}


@dataclass
class Config:
    """The site. `speed` shortens walltimes: 60 makes a minute of walltime a second."""

    nodes: int = 10
    ncpus: int = 32
    ngpus: int = 4
    mem_mb: int = 64 * 1024
    queues: dict[str, Queue] = field(default_factory=lab_queues)
    default_queue: str = "workq"
    history: bool = True
    hook: bool = (
        False  # refuse as the recorded site hook does: walltime, filesystems and a known account
    )
    client: str = "new"  # or "old": which generation of clients answers
    others_shown: bool = True  # whether users see each other's jobs
    speed: float = 1.0
    kill_delay: float = 10.0
    exiting: float = 0.05  # seconds in state E, while the output is copied
    undeliverable: float = 30.0  # seconds in E when the output cannot be written
    cycle: float = 0.03  # seconds between two rounds of the scheduler


@dataclass
class Job:
    """One job. `submitted` and the like are seconds since the epoch; None until it happens."""

    number: int
    name: str
    owner: str
    queue: str
    script: str
    cwd: Path
    arguments: str
    walltime: int | None
    chunks: list[tuple[int, dict[str, str]]]
    resources: dict[str, str]
    output: Path
    error: Path
    account: str | None = None
    join: bool = False
    keep: str = "n"
    rerunable: bool = True
    umask: int | None = None
    held: str = "n"
    after: tuple[str, int] | None = None  # ("afterok", 56): waits for job 56 to end well
    not_before: float | None = None
    removes: str | None = None  # -R: output that is removed when the job ends well
    shell_args: list[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    state: str = "Q"
    substate: int = 10
    comment: str | None = None
    exit_status: int | None = None
    run_count: int = 0
    submitted: float = field(default_factory=time.time)
    modified: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None
    terminated: int | None = None
    kill_at: float | None = None
    leaves_exiting: float | None = None
    delivered: bool = True
    where: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    index: str = ""  # "[]" of a job array, "[3]" of one of its jobs
    given: dict[str, Any] | None = None  # attributes recorded elsewhere, shown as they are

    @property
    def id(self) -> str:
        return f"{self.number}{self.index}.{SERVER}"

    @property
    def stages_out(self) -> bool:
        """Whether any output is carried to where it belongs after the job has ended."""
        return self.keep != "oe" and self.removes is None

    def change(self, state: str, substate: int, comment: str | None = None) -> None:
        """Go to another state."""
        self.state, self.substate, self.modified = state, substate, time.time()
        if comment is not None:
            self.comment = comment

    def vnodes(self) -> str:
        """`(node01:ncpus=1:ngpus=1)+...`, as exec_vnode and the comments show it."""
        parts = []
        for node, amounts in self.where:
            parts.append(
                ":".join(
                    [f"(node{node + 1:02}", *(f"{k}={_shown(k, v)}" for k, v in amounts.items())]
                )
                + ")"
            )
        return "+".join(parts)

    def ranks(self) -> list[int]:
        """The nodes as the node file lists them: each as often as its chunk has mpiprocs."""
        processes = [
            int(asked.get("mpiprocs", "1")) for count, asked in self.chunks for _ in range(count)
        ]
        return [
            node for (node, _), many in zip(self.where, processes, strict=True) for _ in range(many)
        ]

    def threads(self) -> str:
        """NCPUS and OMP_NUM_THREADS of the job: ompthreads of the first chunk, else its cores."""
        asked = self.chunks[0][1]
        return asked.get("ompthreads", asked.get("ncpus", "1"))

    def attributes(self) -> dict[str, Any]:
        """All that `qstat -f` shows, in its order; None where a job has no such attribute."""
        if self.given is not None:
            return self.given
        used = None
        if self.started and self.process is not None:
            seconds = int((self.ended or time.time()) - self.started)
            used = {
                "cpupercent": "0",
                "cput": "00:00:00",
                "mem": "0kb",
                "ncpus": str(self._total("ncpus")),
            }
            used |= {"vmem": "0kb", "walltime": _clock(seconds)}
        ended = self.state == "F"
        shown: dict[str, Any] = {
            "Job_Name": self.name,
            "Job_Owner": f"{self.owner}@{SERVER}",
            "resources_used": used,
            "job_state": self.state,
            "queue": self.queue,
            "server": SERVER,
            "Account_Name": self.account,
            "Checkpoint": "u",
            "ctime": time.ctime(self.submitted),
            "depend": f"{self.after[0]}:{self.after[1]}.{SERVER}@{SERVER}" if self.after else None,
            "Error_Path": _target(self.error),
            "exec_host": "+".join(f"node{node + 1:02}/0" for node, _ in self.where) or None,
            "exec_vnode": self.vnodes() or None,
            "Execution_Time": time.ctime(self.not_before) if self.not_before else None,
            "Hold_Types": self.held,
            "Join_Path": "oe" if self.join else "n",
            "Keep_Files": self.keep,
            "Mail_Points": "a",
            "mtime": time.ctime(self.modified),
            "Output_Path": _target(self.output),
            "Priority": "0",
            "qtime": time.ctime(self.submitted),
            "Rerunable": str(self.rerunable),
            "Resource_List": self._resource_list(),
            "stime": time.ctime(self.started) if self.started else None,
            "obittime": time.ctime(self.ended) if self.ended else None,
            "session_id": str(self.process.pid) if self.process and self.substate == 42 else None,
            "jobdir": self.environment.get("PBS_O_HOME") if self.started else None,
            "substate": str(self.substate),
            "Variable_List": self.environment,
            "comment": self.comment,
            "etime": time.ctime(self.submitted),
            "umask": f"{self.umask:o}" if self.umask is not None else None,
            "run_count": str(self.run_count) if self.run_count else None,
            "Stageout_status": str(int(self.delivered))
            if ended and self.started and self.stages_out
            else None,
            "Exit_status": str(self.exit_status) if self.exit_status is not None else None,
            "Submit_arguments": self.arguments,
            "history_timestamp": str(int(self.ended or self.modified)) if ended else None,
            "project": "_pbs_project_default",
            "Submit_Host": SERVER,
            "Remove_Files": self.removes,
        }
        return {key: value for key, value in shown.items() if value is not None}

    def _resource_list(self) -> dict[str, str]:
        found = {
            key: value
            for key, value in self.resources.items()
            if key not in {"select", "place", "walltime"}
        }
        for key in ("mpiprocs", "ncpus", "ngpus"):
            total = self._total(key)
            if total or key == "ncpus":
                found[key] = str(total)
        found["nodect"] = str(sum(count for count, _ in self.chunks))
        found["place"] = self.resources.get(
            "place", "free" if "select" in self.resources else "pack"
        )
        found["select"] = self.resources.get("select", f"1:ncpus={self._total('ncpus')}")
        if self.walltime is not None:
            found["walltime"] = _clock(self.walltime)
        return dict(sorted(found.items()))

    def _total(self, key: str) -> int:
        default = "1" if key == "ncpus" else "0"
        return sum(count * int(amounts.get(key, default)) for count, amounts in self.chunks)


def flat(
    attributes: dict[str, Any], escape: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Attributes as text and DSV name them: Resource_List.ncpus; the variables, each escaped, in
    one value.
    """
    for key, value in attributes.items():
        if key == "Variable_List":
            yield key, ",".join(f"{name}={escape(text)}" for name, text in value.items())
        elif isinstance(value, dict):
            yield from ((f"{key}.{inner}", str(text)) for inner, text in value.items())
        else:
            yield key, str(value)


def _target(path: Path) -> str:
    return f"{SERVER}:{path}{'/' if path.is_dir() else ''}"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _shown(key: str, value: int) -> str:
    return f"{value * 1024}kb" if key == "mem" else str(value)
