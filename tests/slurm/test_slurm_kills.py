"""Jobs that are killed, preempted, put back into the queue or lose their node.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import psutil
from cluster import Cluster
from processes import kill, process_name
from slurm_campaign import GATHERED, MASTER, Campaign
from snakemake_run import MODEL

import plm_embed


def awaits_sigterm(process: int) -> bool:
    """Return whether a process has a handler of its own for SIGTERM."""
    caught = re.search(
        r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE
    )
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def share_of_a_core(processes: list[int]) -> float:
    """Return the share of a core that processes had since the first started; at most 1."""
    computed, began = 0.0, time.time()
    for process in map(psutil.Process, processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            computed += sum(process.cpu_times()[:2])
            began = min(began, process.create_time())
    return min(1.0, computed / max(time.time() - began, 1e-3))


def fill(cluster: Cluster, node: str) -> str:
    """Submit a job that takes all GPUs of a node; it comes before all but those in `gpu`."""
    options = ("--partition=gpu", f"--nodelist={node}", "--nodes=1", "--gpus=4", "--time=30")
    words = ("--output=/dev/null", "--parsable", "--wrap", "sleep 1800")
    return cluster.run("sbatch", *options, *words).strip()


def test_a_job_that_goes_back_to_the_queue(campaign: Campaign, undisturbed: Campaign) -> None:
    """It is preempted, then its next node dies, then it is requeued by hand; Snakemake waits for
    it.
    """
    cluster = campaign.cluster
    campaign.edit_profile(
        ("slurm_partition: gpu", "slurm_partition: requeued"), ("# slurm_extra", "slurm_extra")
    )
    with campaign.running(GATHERED):
        campaign.hold(0)
        job, node = campaign.job_of(0)
        assert (node, campaign.gpus_of(0)) == ("g1", ("g1", "0"))
        on_g1 = campaign.processes(0)
        other = fill(cluster, "g1")
        # it publishes what it has before it goes
        cluster.wait_for("g1 to be left", lambda: not any(map(process_name, on_g1)))
        campaign.hold(0)
        assert campaign.job_of(0) == (job, "g2")
        cluster.kill_node("g2")
        cluster.start_node("g2")
        campaign.hold(0)
        cluster.run("scontrol", "requeue", job)
        cluster.run("scancel", other)
    assert campaign.states("embed") == {job: ["PREEMPTED", "NODE_FAIL", "REQUEUED", "COMPLETED"]}
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_preemption_that_cancels(campaign: Campaign, undisturbed: Campaign) -> None:
    """Where SLURM ends what it preempts, although the profile asks to requeue, the job is submitted
    again.
    """
    cluster = campaign.cluster
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: ended"))
    with campaign.running(GATHERED):
        campaign.hold(0)
        job, node = campaign.job_of(0)
        assert node == "g1"
        other = fill(cluster, "g1")
        cluster.wait_for("preemption", lambda: job in cluster.jobs("PR"))
        campaign.wait_for_parts(0)
        cluster.run("scancel", other)
    states = campaign.states("embed")
    assert states.pop(job) == ["PREEMPTED"]
    assert list(states.values()) == [["COMPLETED"]]
    assert "preempted and not put back into the queue" in campaign.words()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_two_minutes_between_sigterm_and_the_end(
    embedding: Callable[..., Campaign], undisturbed: Campaign
) -> None:
    """Vectors computed by then are published, although no part was due for minutes, and no worker
    is started again.
    """
    campaign = embedding(flush_minutes=10)
    cluster = campaign.cluster
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: warned"))
    logs = campaign.folder / "results" / "logs" / MODEL / "embed"
    with campaign.running(GATHERED):
        others = [fill(cluster, "g2")]  # so that a job that is submitted again waits

        def stopped() -> bool:
            # as soon as the worker is ready for the signal: before its first batch is done
            ready = any(map(awaits_sigterm, campaign.workers(0))) and "model loaded" in "".join(
                log.read_text() for log in logs.glob("*.log")
            )
            for process in campaign.processes(0) if ready else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            return ready

        cluster.wait_for("the job to compute", stopped, timeout=600)
        assert not campaign.parts()
        job, node = campaign.job_of(0)
        assert node == "g1"
        others.append(fill(cluster, "g1"))
        cluster.wait_for("g1 to be left", lambda: job not in cluster.jobs("R", "CG"))
        said = "".join(log.read_text() for log in logs.iterdir())
        # some, in one part; or none, where the signal came before the first batch was begun
        assert campaign.computed_again() < 0, said
        assert len(campaign.parts()) == 1 or "stopped by a signal: 0 of" in said, said
        assert said.count("model loaded") == 1
        cluster.run("scancel", *others)
    assert campaign.states()[job][0] in ("PREEMPTED", "FAILED", "CANCELLED")
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_a_job_that_the_controller_has_lost(
    campaign: Campaign, undisturbed: Campaign, tmp_path: Path
) -> None:
    """A controller that is killed forgets the jobs of its last seconds, which accounting shows as
    live for ever; such a job is submitted again.
    """
    cluster = campaign.cluster
    state = cluster.folder / "state"
    shutil.copytree(state, tmp_path / "state")
    with campaign.running(GATHERED):
        campaign.hold(0)
        lost = campaign.processes(0)
        cluster.kill_controller()
        shutil.rmtree(state)
        shutil.copytree(tmp_path / "state", state)
        cluster.start_controller()
        cluster.wait_for("slurmd to end the job", lambda: not any(map(process_name, lost)))
    assert "SLURM has forgotten job" in campaign.words()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_kills_at_random(embedding: Callable[..., Campaign], undisturbed: Campaign) -> None:
    """Each at a random instant of a computing job, three on eight GPUs: no sequence is lost, little
    is done twice.
    """
    # slack, in processor time: until the batch is done and the part is written
    flush_seconds, slack = 0.5, 0.5
    campaign = embedding(buckets=3, sequences=600, flush_minutes=flush_seconds / 60)
    cluster, buckets = campaign.cluster, range(3)
    campaign.edit_profile(("retries: 3", "retries: 20"))
    random, seen, lost = Random(4), set[tuple[str, str]](), list[tuple[float, float]]()
    with campaign.running(GATHERED) as process:
        cluster.wait_for("three jobs", lambda: all(map(campaign.processes, buckets)), timeout=600)
        seen = set(map(campaign.gpus_of, buckets))
        # a fast machine may be done before the last of them
        while len(lost) < 4 and process.poll() is None:
            computing = [
                bucket
                for bucket in buckets
                if campaign.unsecured(bucket) and campaign.processes(bucket)
            ]
            time.sleep(random.uniform(0.2, 1.0))
            for bucket in random.sample(computing, min(1, len(computing))):
                processes = campaign.processes(bucket)
                if processes:
                    share = share_of_a_core(processes)
                    kill(processes)
                    lost.append((campaign.unsecured(bucket), share))
    assert len(seen) == 3  # a GPU each
    late = [(seconds - flush_seconds) * share for seconds, share in lost]
    assert max(late) <= slack, lost
    # a job that had just written its record may end well in spite of the kill
    assert len(lost) >= 3
    assert sum("FAILED" in states for states in campaign.states().values()) >= len(lost) - 2
    assert campaign.computed_again() == 0
    with (
        plm_embed.open(campaign.folder / MASTER) as found,
        plm_embed.open(undisturbed.folder / MASTER) as expected,
    ):
        # the first of its sequences
        assert len(found) == campaign.sequences
        assert all(np.array_equal(found[name], expected[name]) for name in expected.ids)
    print(f"work done twice, in seconds per kill: {sorted(lost)}")
