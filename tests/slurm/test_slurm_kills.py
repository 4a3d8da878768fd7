"""Jobs that are killed, preempted, put back into the queue or lose their node.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import os
import re
import signal
import time
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
    """Whether a process has a handler of its own for SIGTERM."""
    caught = re.search(
        r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE
    )
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def share_of_a_core(processes: list[int]) -> float:
    """What this machine has given to processes since the first of them started; at most 1."""
    computed, began = 0.0, time.time()
    for process in map(psutil.Process, processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            computed += sum(process.cpu_times()[:2])
            began = min(began, process.create_time())
    return min(1.0, computed / max(time.time() - began, 1e-3))


def test_jobs_that_go_back_to_the_queue(campaign: Campaign, undisturbed: Campaign) -> None:
    """All jobs are preempted, then their next node dies, then one is requeued by hand; Snakemake
    waits for them.
    """
    cluster = campaign.cluster
    campaign.edit_profile(
        ("slurm_partition: gpu", "slurm_partition: requeued"), ("# slurm_extra", "slurm_extra")
    )
    with campaign.running(GATHERED):
        campaign.hold(0, 1)
        jobs = {campaign.job_of(bucket) for bucket in range(2)}
        assert {node for _, node in jobs} == {"g1"}
        assert {campaign.gpus_of(bucket) for bucket in range(2)} == {("g1", gpu) for gpu in "01"}
        on_g1 = [process for bucket in range(2) for process in campaign.processes(bucket)]
        all_of_g1 = (
            "--partition=gpu",
            "--nodelist=g1",
            "--nodes=1",
            "--gpus=4",
            "--output=/dev/null",
        )
        cluster.run("sbatch", *all_of_g1, "--wrap", "sleep 600")
        # the jobs publish what they have before they go
        cluster.wait_for("g1 to be left", lambda: not any(map(process_name, on_g1)))
        campaign.hold(0, 1)
        assert all(campaign.job_of(bucket)[1] == "g2" for bucket in range(2))
        cluster.kill_node("g2")
        campaign.expire_claims(0, 1)
        cluster.start_node("g2")
        campaign.hold(0)
        cluster.run("scontrol", "requeue", campaign.job_of(0)[0])
    states = campaign.states()
    for job, _ in jobs:
        assert states[job][:2] == ["PREEMPTED", "NODE_FAIL"]
        assert states[job][-1] == "COMPLETED"
    assert sum("REQUEUED" in history for history in states.values()) == 1
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_preemption_that_cancels(campaign: Campaign, undisturbed: Campaign) -> None:
    """Where SLURM ends what it preempts, although the profile asks to requeue, the jobs are
    submitted again.
    """
    cluster = campaign.cluster
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: ended"))
    with campaign.running(GATHERED):
        campaign.hold(0, 1)
        jobs = {campaign.job_of(bucket) for bucket in range(2)}
        assert {node for _, node in jobs} == {"g1"}
        all_of_g1 = (
            "--partition=gpu",
            "--nodelist=g1",
            "--nodes=1",
            "--gpus=4",
            "--output=/dev/null",
            "--parsable",
        )
        other = cluster.run("sbatch", *all_of_g1, "--wrap", "sleep 600").strip()
        cluster.wait_for("preemption", lambda: len(cluster.jobs("PR")) == 2)
        campaign.expire_claims(0, 1)
        campaign.wait_for_parts(0, 1)
        cluster.run("scancel", other)
    states = campaign.states()
    assert all(states[job] == ["PREEMPTED"] for job, _ in jobs)
    assert sorted(map(tuple, states.values())).count(("COMPLETED",)) == 3  # two, and gather
    assert "preempted and not put back into the queue" in campaign.words()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_thirty_seconds_between_sigterm_and_the_end(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path
) -> None:
    """What was computed by then is published, although no part was due for minutes, and no worker
    is started again.
    """
    campaign = Campaign(tmp_path / "c", cluster, flush_minutes=10)
    campaign.adopt(undisturbed)
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: warned"))

    def fill(node: str) -> str:
        options = (
            f"--nodelist={node}",
            "--nodes=1",
            "--gpus=4",
            "--time=30",
            "--output=/dev/null",
            "--parsable",
        )
        return cluster.run("sbatch", "--partition=gpu", *options, "--wrap", "sleep 1800").strip()

    with campaign.running(GATHERED):
        others = [fill("g2")]  # so that jobs that are submitted again wait
        computing = set(range(2))

        def stopped() -> bool:
            # as soon as the worker is ready for the signal: before its first batch is done
            for bucket in list(computing):
                if any(map(awaits_sigterm, campaign.workers(bucket))):
                    for process in campaign.processes(bucket):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process, signal.SIGSTOP)
                    computing.remove(bucket)
            return not computing

        cluster.wait_for("both jobs to compute", stopped, timeout=600)
        assert not campaign.parts()
        jobs = {campaign.job_of(bucket) for bucket in range(2)}
        assert {node for _, node in jobs} == {"g1"}
        others.append(fill("g1"))
        cluster.wait_for(
            "g1 to be left", lambda: not {job for job, _ in jobs} & set(cluster.jobs("R", "CG"))
        )
        assert [len(campaign.parts(bucket)) for bucket in range(2)] == [1] * 2
        for log in (campaign.folder / "results" / "logs" / MODEL / "embed").iterdir():
            assert log.read_text().count("model loaded") == 1
        cluster.run("scancel", *others)
    states = campaign.states()
    assert all(states[job][0] in ("PREEMPTED", "FAILED", "CANCELLED") for job, _ in jobs)
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_kills_at_random(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """Each at a random instant of a computing job, five on eight GPUs: no sequence is lost, little
    is done twice.
    """
    # slack, in processor time: until the batch is done and the part is written
    flush_seconds, slack = 0.5, 0.5
    campaign = Campaign(
        tmp_path / "c", cluster, buckets=5, sequences=320, flush_minutes=flush_seconds / 60
    )
    campaign.adopt_weights(undisturbed)
    campaign.edit_profile(("retries: 3", "retries: 20"))
    random, seen, lost = Random(4), set[tuple[str, str]](), list[tuple[float, float]]()
    with campaign.running(GATHERED) as process:
        cluster.wait_for(
            "five jobs",
            lambda: all(campaign.processes(bucket) for bucket in range(5)),
            timeout=600,
        )
        seen = {campaign.gpus_of(bucket) for bucket in range(5)}
        # a fast machine may be done before the last of them
        while len(lost) < 6 and process.poll() is None:
            computing = [
                bucket
                for bucket in range(5)
                if campaign.unsecured(bucket) and campaign.processes(bucket)
            ]
            time.sleep(random.uniform(0, 0.7))
            for bucket in random.sample(computing, min(1, len(computing))):
                processes = campaign.processes(bucket)
                if processes:
                    share = share_of_a_core(processes)
                    kill(processes)
                    lost.append((campaign.unsecured(bucket), share))
                    campaign.expire_claims(bucket)
    assert len(seen) == 5  # a GPU each
    late = [(seconds - flush_seconds) * share for seconds, share in lost]
    assert max(late) <= slack, lost
    # a job that had just written its record may end well in spite of the kill
    assert len(lost) >= 4
    assert sum("FAILED" in states for states in campaign.states().values()) >= len(lost) - 2
    assert campaign.computed_again() == 0
    with (
        plm_embed.open(campaign.folder / MASTER) as found,
        plm_embed.open(undisturbed.folder / MASTER) as expected,
    ):  # the first half of its sequences
        assert len(found) == campaign.sequences
        assert all(np.array_equal(found[name], expected[name]) for name in expected.ids)
    print(f"work done twice, in seconds per kill: {sorted(lost)}")
