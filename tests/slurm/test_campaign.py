"""Whole campaigns through `snakemake --profile slurm`, undisturbed and with every kind of trouble.

Each ends with the master of an undisturbed run, byte for byte.
"""

import contextlib
import os
import signal
import time

from campaign import MASTER, MODEL, Campaign
from cluster import NODES


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
        run("scancel", jobs[0])
        run("scontrol", "update", f"jobid={jobs[1]}", "EndTime=now+1")
        kill(campaign.workers(2))
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
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: requeued"))
    with campaign.running(MASTER):
        campaign.wait_for_parts(0, 1, 2, 3)
        jobs = {campaign.job_of(bucket) for bucket in range(4)}
        assert {node for _, node in jobs} == {"g1"}
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
        workers = campaign.workers(0)
        with campaign.cluster.silent("slurmctld"), campaign.cluster.silent("slurmdbd"):
            kill(workers)
            campaign.expire_claims(0)
            time.sleep(60)
    assert sorted(map(tuple, campaign.states().values())) == [*[("COMPLETED",)] * 5, ("FAILED",)]
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_snakemake_is_killed(campaign: Campaign, undisturbed: Campaign) -> None:
    """Its jobs go on. The same command, with the lock removed, goes on too."""
    first = campaign.start(MASTER)
    try:
        campaign.wait_for_parts(0, 1, 2, 3)
        kill(campaign.workers(3))
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


def test_interrupts(campaign: Campaign, undisturbed: Campaign) -> None:
    """Ctrl-C cancels the jobs, a second one does no harm, and the same command goes on."""
    for interrupts in (1, 2):
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
    with campaign.running(MASTER, "--slurm-array-jobs", "embed"):
        campaign.wait_for_parts(0, 1, 2, 3)
        kill(campaign.workers(2))
        campaign.expire_claims(2)
    assert len([job for job in campaign.states() if "_" in job]) >= 4
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_a_job_that_cannot_succeed_is_explained(campaign: Campaign) -> None:
    """The log's path and its last lines, with cause and remedy, are on the user's screen."""
    campaign.edit_profile(("retries: 3", "retries: 0"))
    bucket = campaign.folder / "results/sequences/buckets/0001.parquet"
    bucket.write_bytes(bucket.read_bytes()[:100])
    os.utime(bucket, (0, 0))
    try:
        assert campaign.finish(campaign.start(MASTER, "--keep-going")) == 1
    finally:
        campaign.cluster.wait_for("no jobs", lambda: not campaign.cluster.jobs())
    words = campaign.words()
    assert f"results/logs/{MODEL}/embed/0001.log" in words
    assert "plm-embed: error: " in words
