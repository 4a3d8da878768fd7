"""Requests of second attempts, and jobs that can never run."""

from collections.abc import Callable

from processes import kill
from slurm_campaign import GATHERED, Campaign
from snakemake_run import MODEL


def limits(campaign: Campaign) -> dict[str, list[tuple[str, int]]]:
    """By job, `rule_embed_wildcards_0000`: the state and the time limit in minutes of each
    attempt.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    for job, state, minutes, _ in campaign.accounted("Comment", "State", "TimelimitRaw"):
        found.setdefault(job, []).append((state.split()[0], int(minutes)))
    return found


def test_jobs_that_are_killed_are_submitted_again(
    embedding: Callable[..., Campaign], undisturbed: Campaign
) -> None:
    """Each attempt of two jobs dies in another way after it has published parts; the next one
    computes the rest.

    Each asks for the same time. The job whose slurmstepd dies ends too, instead of waiting for it
    with the GPU. The batch script passes on to the rule that the job is to end.
    """
    campaign = embedding(buckets=2)
    run = campaign.cluster.run
    campaign.edit_profile(("runtime: 240", "runtime: 20"))
    run("scontrol", "update", "partitionname=gpu", "MaxTime=30")
    try:
        with campaign.running(GATHERED):
            campaign.hold(0, 1)
            used = set(map(campaign.gpus_of, range(2)))
            run("scontrol", "update", f"jobid={campaign.job_of(0)[0]}", "EndTime=now+1")
            kill([campaign.script_of(1).ppid()])  # which ends what it had stopped
            campaign.hold(0, 1)
            run("scancel", "--signal=KILL", "--full", campaign.job_of(0)[0])
            run("scancel", campaign.job_of(1)[0])
            campaign.hold(1)
            campaign.script_of(1).terminate()  # alone, as with proctrack/cgroup
            campaign.go_on(1)
    finally:
        run("scontrol", "update", "partitionname=gpu", "MaxTime=2-0")
    assert used == {("g1", gpu) for gpu in "01"}
    jobs = (f"rule_embed_wildcards_{MODEL}_{bucket:04d}" for bucket in range(2))
    first, second = map(limits(campaign).__getitem__, jobs)
    assert first[0][0] == "TIMEOUT"  # whose limit SLURM has changed with its end
    assert first[1] in [("FAILED", 20), ("CANCELLED", 20)]
    assert first[2:] == [("COMPLETED", 20)]
    assert second == [("CANCELLED", 20)] * 2 + [("FAILED", 20), ("COMPLETED", 20)]
    assert "stopped by a signal" in campaign.words()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_what_can_never_run_ends(embedding: Callable[..., Campaign]) -> None:
    """An unknown partition, and a partition that gives less time than is asked for."""
    campaign = embedding(buckets=2)
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: nosuch"))
    process = campaign.start(GATHERED)
    try:
        assert campaign.finish(process) == 1
    finally:
        campaign.abandon(process)
    # for each job
    assert campaign.words().count("Invalid partition name specified") == 2
    assert campaign.words().count("is not tried again") == 2
    assert not campaign.states()

    campaign.edit_profile(("slurm_partition: nosuch", "slurm_partition: gpu"))
    campaign.edit_profile(("runtime: 240", "runtime: 20"))
    campaign.log.unlink()
    campaign.cluster.run("scontrol", "update", "partitionname=gpu", "MaxTime=5")
    process = campaign.start(GATHERED)
    try:
        assert campaign.finish(process) == 1
    finally:
        campaign.abandon(process)
        campaign.cluster.run("scontrol", "update", "partitionname=gpu", "MaxTime=2-0")
    assert campaign.words().count("can never start: PartitionTimeLimit") == 2
    assert list(campaign.states().values()) == [["CANCELLED"]] * 2
