"""Disturbances of a campaign on a cluster: each function causes one and returns what it was, in
words.

It raises NotYetError when there is nothing to hit; then it is tried again a little later.
"""

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from cluster import Cluster
from daemons import GPU_NODES
from disks import Disk
from processes import command_line, descendants
from slurm_campaign import Campaign


class NotYetError(Exception):
    """There is nothing to hit at the moment."""


class Scene:
    """A cluster, the campaigns on it, perhaps the disk of their results; `later`: what ends by
    itself, with its time.

    `mend`: what a user does before he repeats his command.
    """

    def __init__(
        self, cluster: Cluster, campaigns: list[Campaign], random: Random, disk: Disk | None
    ) -> None:
        self.cluster = cluster
        self.campaigns = campaigns
        self.random = random
        self.disk = disk
        self.processes: list[subprocess.Popen[bytes]] = []  # Snakemake, of each campaign
        self.later: list[tuple[float, str, Callable[[], object]]] = []
        self.mend: list[tuple[str, Callable[[], object]]] = []

    def running(self) -> list[tuple[str, str, str]]:
        """Job, node and rule of each running job."""
        lines = self.cluster.run(
            "squeue", "--noheader", "--states=R", "--format=%i|%N|%k"
        ).splitlines()
        return [(job, node, rule) for job, node, rule in (line.split("|", 2) for line in lines)]

    def a_job(self, rule: str = "") -> tuple[str, str, str]:
        return self.one([job for job in self.running() if f"rule_{rule}" in job[2]])

    def one(self, found: Sequence[Any]) -> Any:
        if not found:
            raise NotYetError
        return self.random.choice(found)

    def embed_processes(self) -> list[int]:
        """The parent of each embed job."""
        inside = [process for node in GPU_NODES for process in self.cluster.processes(node)]
        return [
            process
            for process in inside
            if command_line(process)[1:4] == ["-m", "plm_embed", "embed"]
        ]

    def after(self, seconds: float, what: str, do: Callable[[], object]) -> None:
        self.later.append((time.monotonic() + seconds, what, do))


def _kill(process: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        raise NotYetError from None


def kill_worker(scene: Scene) -> str:
    workers = [child for parent in scene.embed_processes() for child in descendants(parent)]
    worker = scene.one(
        [
            process
            for process in workers
            if any("spawn_main" in word for word in command_line(process))
        ]
    )
    _kill(worker)
    return "kill -9 of a worker"


def kill_embed(scene: Scene) -> str:
    _kill(scene.one(scene.embed_processes()))
    return "kill -9 of an embed parent"


def kill_job_process(scene: Scene) -> str:
    inside = [process for node in ("c1", *GPU_NODES) for process in scene.cluster.processes(node)]
    process = scene.one(
        [process for process in inside if command_line(process)[1:3] == ["-m", "plm_embed"]]
    )
    words = command_line(process)
    _kill(process)
    return f"kill -9 of {words[3]}"


def kill_slurmstepd(scene: Scene) -> str:
    _kill(scene.one([step for node in GPU_NODES for step in scene.cluster.steps(node)]))
    return "kill -9 of a slurmstepd"


def kill_batch_slurmstepd(scene: Scene) -> str:
    """Not one of those that are drawn: their numbers stand for what happened under them before."""
    steps = [step for node in GPU_NODES for step in scene.cluster.steps(node)]
    _kill(scene.one([step for step in steps if ".batch]" in command_line(step)[0]]))
    return "kill -9 of the slurmstepd of a batch script"


def cancel(scene: Scene) -> str:
    job, _, rule = scene.a_job()
    scene.cluster.run("scancel", job)
    return f"scancel of {rule}"


def requeue(scene: Scene) -> str:
    job, _, rule = scene.a_job("embed")
    scene.cluster.run("scontrol", "requeue", job)
    return f"requeue of {rule}"


def end_time(scene: Scene) -> str:
    job, _, rule = scene.a_job("embed")
    scene.cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+1")
    return f"time limit now of {rule}"


def node_down(scene: Scene) -> str:
    node = scene.a_job()[1]
    scene.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    resume = ("scontrol", "update", f"nodename={node}", "state=resume")
    scene.after(25, f"{node} resumed", lambda: scene.cluster.run(*resume))
    return f"{node} set down"


def power_cut(scene: Scene) -> str:
    if scene.disk is not None:
        return "no power cut: the node would lose the disk"
    node = scene.a_job()[1]
    scene.cluster.kill_node(node)
    scene.after(20, f"{node} boots", lambda: scene.cluster.start_node(node))
    return f"power cut of {node}"


def controller_silent(scene: Scene) -> str:
    silence = contextlib.ExitStack()
    silence.enter_context(scene.cluster.silent("slurmctld"))
    scene.after(scene.random.uniform(20, 60), "slurmctld continued", silence.close)
    return "slurmctld stopped"


def controller_killed(scene: Scene) -> str:
    scene.cluster.kill_controller()
    scene.after(scene.random.uniform(5, 40), "slurmctld restarted", scene.cluster.start_controller)
    return "slurmctld killed -9"


def _to_main(scene: Scene, number: signal.Signals, times: int = 1) -> str:
    process = scene.one([process for process in scene.processes if process.poll() is None])
    for _ in range(times):
        with contextlib.suppress(ProcessLookupError):
            # Ctrl-C goes to all processes of the terminal
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        time.sleep(1)
    return f"{number.name} to Snakemake" + (f", {times} times" if times > 1 else "")


def kill_main(scene: Scene) -> str:
    return _to_main(scene, signal.SIGKILL)


def terminate_main(scene: Scene) -> str:
    return _to_main(scene, signal.SIGTERM)


def interrupt(scene: Scene) -> str:
    return _to_main(scene, signal.SIGINT)


def interrupt_twice(scene: Scene) -> str:
    return _to_main(scene, signal.SIGINT, 2)


def disk_full(scene: Scene) -> str:
    assert scene.disk is not None
    scene.disk.fill()
    scene.mend.append(("disk freed", scene.disk.free))
    scene.after(scene.random.uniform(60, 150), "disk freed", scene.disk.free)
    return "results disk filled"


def disk_fails(scene: Scene) -> str:
    """Read-only for good: the user sees his command fail, cancels what is left, repairs and
    repeats.
    """
    assert scene.disk is not None
    scene.disk.fail()
    disk = scene.disk

    def repair() -> None:
        if scene.cluster.jobs():
            scene.cluster.run("scancel", "--user=root")
        scene.cluster.wait_for("the jobs to let go of the disk", lambda: not scene.cluster.jobs())
        disk.repair()

    scene.mend.append(("disk repaired", repair))
    return "results disk read-only"


def edit_config(scene: Scene) -> str:
    """While jobs wait; before the command is repeated the user takes it back."""
    campaign = scene.campaigns[0]
    path = campaign.folder / "config" / "config.yaml"
    before = path.read_text()
    scene.a_job()
    edit = scene.random.choice(
        ["embedding: {storage_dtype: float32}\n", "residues: {unknown: substitute}\n", "buckets"]
    )
    more = (
        before.replace(f"buckets: {campaign.buckets}", "buckets: 7")
        if edit == "buckets"
        else before + edit
    )
    path.write_text(more)
    scene.mend.append(("config as before", lambda: path.write_text(before)))
    return f"config edited ({edit.strip()})"


Disturbance = Callable[[Scene], str]


def once_computing(what: Disturbance) -> Disturbance:
    """The same, but not before a part has been published."""

    @functools.wraps(what)
    def wait(scene: Scene) -> str:
        if not scene.campaigns[0].parts():
            raise NotYetError
        return what(scene)

    return wait


ON_A_DISK: list[Disturbance] = [disk_full, disk_fails]
DISTURBANCES: list[Disturbance] = [
    *ON_A_DISK,
    kill_worker,
    kill_embed,
    kill_job_process,
    kill_slurmstepd,
    cancel,
    requeue,
    end_time,
    node_down,
    power_cut,
    controller_silent,
    controller_killed,
    kill_main,
    terminate_main,
    interrupt,
    interrupt_twice,
    edit_config,
]
