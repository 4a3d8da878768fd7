"""The test-bed itself: that it behaves as a cluster with GPUs does, and that nothing of it
remains.
"""

import subprocess
import sys
import time
from pathlib import Path

import cluster as bed
import pytest
from cluster import Cluster
from daemons import GPU_NODES, GPUS

# Prints node and GPUs, then holds them until told otherwise.
HOLD = 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"; until [ -e {release} ]; do sleep 0.1; done'


@pytest.mark.parametrize(
    ("request_flags", "nodes"),
    [
        (("--nodes=1", "--gpus=1"), GPU_NODES),
        (("--gres=gpu:h100:1",), ("g2",)),
        (("--nodes=1", "--gpus-per-node=1"), GPU_NODES),
    ],
    ids=["gpu", "typed gres", "gpus-per-node"],
)
def test_concurrent_jobs_get_distinct_gpus(
    cluster: Cluster, tmp_path: Path, request_flags: tuple[str, ...], nodes: tuple[str, ...]
) -> None:
    jobs = len(nodes) * GPUS
    release = tmp_path / "release"
    for job in range(jobs):
        hold = HOLD.format(release=release)
        cluster.run(
            "sbatch",
            "-p",
            "gpu",
            *request_flags,
            "--output",
            f"{tmp_path}/{job}.log",
            "--wrap",
            hold,
        )

    def devices() -> set[str]:
        return {line for log in tmp_path.glob("*.log") for line in log.read_text().splitlines()}

    try:
        cluster.wait_for("one GPU for each job", lambda: len(devices()) == jobs)
        assert devices() == {f"{node} {gpu}" for node in nodes for gpu in range(GPUS)}
    finally:
        release.touch()
        cluster.wait_for("the end of the jobs", lambda: not cluster.jobs())


def test_a_dead_node_ends_its_job_and_can_come_back(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sleep = ("--output", str(log), "--wrap", "hostname; sleep 300")
    job = cluster.run(
        "sbatch", "--parsable", "-w", "g1", "-p", "gpu", "--no-requeue", *sleep
    ).strip()
    cluster.wait_for("the job's start", lambda: log.exists() and log.read_text() == "g1\n")
    assert cluster.processes("g1")
    cluster.kill_node("g1")
    cluster.wait_for("NODE_FAIL", lambda: cluster.jobs("NF") == {job: "g1"})
    cluster.start_node("g1")


def test_a_killed_session_leaves_nothing(tmp_path: Path) -> None:
    """The command that `session` runs ends when its input does; all the rest must not need to be
    told.
    """
    log = tmp_path / "log"
    submit = f'sbatch -Q -o {log} --wrap "echo started; sleep 4321"'
    command = f"{submit}; until [ -s {log} ]; do sleep 0.1; done; echo $SLURM_CONF; exec cat"
    session = subprocess.Popen(
        [sys.executable, bed.__file__, "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert session.stdout is not None
    configuration = Path(session.stdout.readline().strip())
    assert configuration.exists()
    processes = [
        process for process in bed.descendants(session.pid) if bed.process_name(process) != "cat"
    ]
    assert {"slurmctld", "slurmdbd", "mariadbd", "munged", "slurmd", "sleep"} <= {
        bed.process_name(p) for p in processes
    }
    session.kill()
    session.communicate()
    end = time.monotonic() + 300
    while any(map(bed.process_name, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(bed.process_name, processes))
    bed.remove_abandoned()
    assert not configuration.parents[1].exists()
