"""State of the stand-in: its queues, and its jobs as `qstat -f` shows them."""

import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

SERVER = "pbs01"


@dataclass
class Queue:
    """One queue; times in seconds."""

    name: str
    walltime: tuple[float, float] = (0, 1e9)
    nodes: tuple[int, int] = (1, 10**9)
    enabled: bool = True
    started: bool = True
    max_queued: int | None = None


def lab_queues() -> dict[str, Queue]:
    """The queues of the recorded OpenPBS."""
    queues = [
        Queue("workq"),
        Queue("debug", walltime=(10, 3600), nodes=(1, 2)),
        Queue("prod", walltime=(300, 86400), nodes=(10, 10)),
        Queue("stoppedq", started=False),
        Queue("disabledq", enabled=False),
    ]
    return {queue.name: queue for queue in queues}


@dataclass
class Config:
    """The site. `speed` shortens walltimes: 60 makes a minute of walltime a second."""

    nodes: int = 10
    ncpus: int = 32
    ngpus: int = 4
    queues: dict[str, Queue] = field(default_factory=lab_queues)
    default_queue: str = "workq"
    history: bool = True
    speed: float = 1.0
    kill_delay: float = 10.0
    undeliverable: float = 30.0  # seconds in E when the output cannot be written
    cycle: float = 0.03  # seconds between two rounds of the scheduler


@dataclass
class Job:
    """One job. `submitted` and `ended` are seconds since the epoch."""

    number: int
    name: str
    owner: str
    queue: str
    script: str
    arguments: str
    output: Path
    resources: dict[str, str]
    chunks: list[dict[str, int]]  # what each asks of its node: {"ncpus": 4, "ngpus": 1}
    walltime: float | None = None
    live_output: bool = False
    rerunable: bool = True
    umask: int = 0o077
    held: str = "n"
    state: str = "Q"
    substate: int = 10
    comment: str = ""
    exit_status: int | None = None
    run_count: int = 0
    cpu_time: str = "00:00:00"
    submitted: float = field(default_factory=time.time)
    started: float = 0.0
    ended: float | None = None
    terminated: int | None = None  # Exit_status of a job that is being killed
    kill_at: float | None = None
    leaves_exiting: float = 0.0
    where: list[int] = field(default_factory=list)  # nodes, one a chunk
    process: subprocess.Popen[bytes] | None = None

    @property
    def id(self) -> str:
        return f"{self.number}.{SERVER}"

    def text(self) -> str:
        """The job as `qstat -f` prints it, long values folded."""
        shown = {
            "Job_Name": self.name,
            "Job_Owner": f"{self.owner}@{SERVER}",
            "resources_used.cput": self.cpu_time if self.process else "",
            "job_state": self.state,
            "queue": self.queue,
            "Hold_Types": self.held,
            "Resource_List.walltime": self.resources.get("walltime", ""),
            "substate": str(self.substate),
            "Variable_List": f"PBS_O_QUEUE={self.queue},comment = no,PBS_O_HOST={SERVER}",
            "comment": self.comment,
            "run_count": str(self.run_count or ""),
            "Exit_status": "" if self.exit_status is None else str(self.exit_status),
            "Submit_arguments": self.arguments,
        }
        lines = [f"    {key} = {value}" for key, value in shown.items() if value]
        return "\n".join([f"Job Id: {self.id}", *(re.sub(r"(.{70})", "\\1\n\t", x) for x in lines)])
