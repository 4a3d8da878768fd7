"""Whole campaigns through `snakemake --profile slurm`, undisturbed and with every kind of trouble.

Each ends with the master of an undisturbed run, byte for byte.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from cluster import NODES, Cluster
from slurm_campaign import MASTER, MODEL, Campaign


def kill(processes: list[int]) -> None:
    assert processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_a_whole_campaign(undisturbed: Campaign) -> None:
    assert undisturbed.computed_again() == 0
    assert set(map(tuple, undisturbed.states().values())) == {("COMPLETED",)}
    scratch = undisturbed.cluster.folder / "scratch"
    assert not [path for node in NODES for path in (scratch / node).iterdir()]


def test_jobs_that_are_killed_are_submitted_again(campaign: Campaign, undisturbed: Campaign) -> None:
    """Each of four jobs dies in another way after it has published parts; the next attempt computes the rest."""
    run = campaign.cluster.run
    with campaign.running(MASTER):
        campaign.wait_for_parts(0, 1, 2, 3)
        jobs = [campaign.job_of(bucket)[0] for bucket in range(4)]
        assert {campaign.gpus_of(bucket) for bucket in range(4)} == {("g1", gpu) for gpu in "0123"}
        run("scancel", jobs[0])
        run("scontrol", "update", f"jobid={jobs[1]}", "EndTime=now+1")
        kill(campaign.processes(2))
        run("scancel", "--signal=KILL", "--full", jobs[3])
        campaign.expire_claims(2, 3)
    states = campaign.states()
    assert states[jobs[0]] == ["CANCELLED"]
    assert states[jobs[1]] == ["TIMEOUT"]
    assert states[jobs[2]] == ["FAILED"]
    assert states[jobs[3]][0] in ("FAILED", "CANCELLED")
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_jobs_that_go_back_to_the_queue(campaign: Campaign, undisturbed: Campaign) -> None:
    """All jobs are preempted, then their next node dies, then one is requeued by hand; Snakemake waits for them."""
    cluster = campaign.cluster
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: requeued"), ("# slurm_extra", "slurm_extra"))
    with campaign.running(MASTER):
        campaign.wait_for_parts(0, 1, 2, 3)
        jobs = {campaign.job_of(bucket) for bucket in range(4)}
        assert {node for _, node in jobs} == {"g1"}
        assert {campaign.gpus_of(bucket) for bucket in range(4)} == {("g1", gpu) for gpu in "0123"}
        all_of_g1 = ("--partition=gpu", "--nodelist=g1", "--nodes=1", "--gpus=4", "--output=/dev/null")
        cluster.run("sbatch", *all_of_g1, "--wrap", "sleep 600")
        cluster.wait_for("the jobs on g2", lambda: all(campaign.job_of(bucket)[1] == "g2" for bucket in range(4)))
        campaign.wait_for_parts(0, 1, 2, 3)
        cluster.kill_node("g2")
        campaign.expire_claims(0, 1, 2, 3)
        cluster.start_node("g2")
        campaign.wait_for_parts(0)
        cluster.run("scontrol", "requeue", campaign.job_of(0)[0])
    states = campaign.states()
    for job, _ in jobs:
        assert states[job][:2] == ["PREEMPTED", "NODE_FAIL"]
        assert states[job][-1] == "COMPLETED"
    assert sum("REQUEUED" in history for history in states.values()) == 1
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_no_accounting_and_a_silent_controller(campaign: Campaign, undisturbed: Campaign) -> None:
    """Without sacct the states come from squeue; a minute without an answer is waited out."""
    with campaign.running(MASTER, without="sacct"):
        campaign.wait_for_parts(0)
        processes = campaign.processes(0)
        with campaign.cluster.silent("slurmctld"), campaign.cluster.silent("slurmdbd"):
            kill(processes)
            campaign.expire_claims(0)
            time.sleep(60)
    assert sorted(state for states in campaign.states().values() for state in states)[-2:] == ["COMPLETED", "FAILED"]
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_snakemake_is_killed(campaign: Campaign, undisturbed: Campaign) -> None:
    """Its jobs go on. The same command, with the lock removed, goes on too."""
    first = campaign.start(MASTER)
    try:
        campaign.wait_for_parts(0, 1, 2, 3)
        kill(campaign.processes(3))
        campaign.expire_claims(3)
        first.kill()
        first.wait()
        assert len(campaign.cluster.jobs("R")) >= 3
        assert campaign.finish(campaign.start("--unlock")) == 0
        with campaign.running(MASTER):
            pass
    finally:
        campaign.abandon(first)
    assert campaign.master() == undisturbed.master()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_interrupts(campaign: Campaign, undisturbed: Campaign, interrupts: int) -> None:
    """Ctrl-C cancels the jobs, a second one does no harm, and the same command goes on."""
    process = campaign.start(MASTER)
    try:
        campaign.wait_for_parts(0)
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert campaign.finish(process, timeout=60) != 0
        campaign.cluster.wait_for("no jobs", lambda: not campaign.cluster.jobs())
    finally:
        campaign.abandon(process)
    with campaign.running(MASTER):
        pass
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_job_arrays(campaign: Campaign, undisturbed: Campaign) -> None:
    """One array instead of four jobs, here with the type of the GPU named; a task that dies is submitted again."""
    campaign.edit_profile(("# gpu_model: a100", "gpu_model: h100"))
    with campaign.running(MASTER, "--slurm-array-jobs", "embed"):
        campaign.wait_for_parts(0, 1, 2, 3)
        assert {campaign.gpus_of(bucket) for bucket in range(4)} == {("g2", gpu) for gpu in "0123"}
        kill(campaign.processes(2))
        campaign.expire_claims(2)
    assert len([job for job in campaign.states() if "_" in job]) >= 4
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_what_cannot_succeed_is_explained(campaign: Campaign) -> None:
    """The log's path and its last lines, with cause and remedy, are on the user's screen."""
    campaign.edit_profile(("retries: 3", "retries: 0"), ("# scratch: /local/scratch", "scratch: tmp/$NOT_SET"))
    process = campaign.start(MASTER)
    try:
        assert campaign.finish(process) == 1
    finally:
        campaign.abandon(process)
    words = campaign.words()
    assert f"results/logs/{MODEL}/embed/0000.log" in words
    assert "speed.scratch: tmp/$NOT_SET: an environment variable in it is not set" in words
    assert "name another folder, or `auto`" in words


def test_whole_nodes(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """One job with four GPUs and as many workers; one of them dies, and the others and its successor do the rest."""
    campaign = Campaign(tmp_path / "c", cluster, profile="slurm-node")
    campaign.adopt(undisturbed)
    with campaign.running(MASTER):
        cluster.wait_for("four workers", lambda: len(campaign.workers(0)) == 4, timeout=120)
        assert campaign.gpus_of(0)[1] == "0,1,2,3"
        cluster.wait_for("parts", campaign.parts)
        kill(campaign.workers(0)[:1])
    assert set(map(tuple, campaign.states().values())) == {("COMPLETED",)}
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
