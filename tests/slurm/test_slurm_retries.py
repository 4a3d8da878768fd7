"""What a second attempt asks for, what is not tried again, and what an edit of the configuration
changes: nothing.
"""

import contextlib
from collections.abc import Callable
from functools import partial

import psutil
from daemons import ClusterError
from disturbed_run import Neighbor
from processes import kill
from slurm_campaign import GATHERED, Campaign


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

    Its time limit has grown after a time limit, but not above the partition's, and not after a
    kill. The job whose slurmstepd dies ends too, instead of waiting for it with the GPU. Snakemake
    passes on to its rule that the job is to end.
    """
    campaign = embedding(buckets=2)
    run = campaign.cluster.run
    campaign.edit_profile(("# runtime: 240 * attempt", "runtime: 20 * attempt"))
    run("scontrol", "update", "partitionname=gpu", "MaxTime=30")
    try:
        with campaign.running(GATHERED):
            campaign.hold(0, 1)
            used = set(map(campaign.gpus_of, range(2)))
            run("scontrol", "update", f"jobid={campaign.job_of(0)[0]}", "EndTime=now+1")
            kill([campaign.step_of(1)])  # which ends what it had stopped
            campaign.expire_claims(1)
            campaign.hold(0, 1)
            run("scancel", "--signal=KILL", "--full", campaign.job_of(0)[0])
            campaign.expire_claims(0)
            run("scancel", campaign.job_of(1)[0])
            campaign.hold(1)
            rule = psutil.Process(campaign.processes(1)[0])
            rule.parent().terminate()  # its Snakemake alone, as with proctrack/cgroup
            campaign.go_on(1)
    finally:
        run("scontrol", "update", "partitionname=gpu", "MaxTime=2-0")
    assert used == {("g1", gpu) for gpu in "01"}
    jobs = (f"rule_embed_wildcards_{bucket:04d}" for bucket in range(2))
    first, second = map(limits(campaign).__getitem__, jobs)
    assert first[0][0] == "TIMEOUT"  # whose limit SLURM has changed with its end
    assert first[1] in [("FAILED", 30), ("CANCELLED", 30)]
    assert first[2:] == [("COMPLETED", 30)]
    assert second == [("CANCELLED", 20)] * 2 + [("FAILED", 20), ("COMPLETED", 20)]
    assert "stopped by a signal" in campaign.words()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_what_can_never_run_is_said_once_and_ends(embedding: Callable[..., Campaign]) -> None:
    """An unknown partition, and a partition that gives less time than is asked for."""
    campaign = embedding(buckets=2)
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: nosuch"))
    process = campaign.start(GATHERED)
    try:
        assert campaign.finish(process) == 1
    finally:
        campaign.abandon(process)
    refused = "Invalid partition name specified. It is not tried again"
    assert campaign.words().count(refused) == 2
    assert not campaign.states()

    campaign.edit_profile(("slurm_partition: nosuch", "slurm_partition: gpu"))
    # the workflow by itself asks for no more than the partition gives
    campaign.edit_profile(("# runtime: 240 * attempt", "runtime: 20 * attempt"))
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


def test_an_edit_while_jobs_wait_changes_nothing(campaign: Campaign, undisturbed: Campaign) -> None:
    """The jobs embed what the main process checked, also in a second attempt, and also beside a
    second campaign in the same clone.
    """
    cluster, neighbor = campaign.cluster, Neighbor(campaign)
    neighbor.adopt(undisturbed)
    resume = partial(cluster.run, "scontrol", "update", "nodename=g1,g2", "state=resume")
    cluster.run("scontrol", "update", "nodename=g1,g2", "state=drain", "reason=test")
    configuration = campaign.folder / "config" / "config.yaml"
    text = configuration.read_text()
    try:
        with campaign.running(GATHERED), neighbor.running(f"second/{GATHERED}"):
            cluster.wait_for("both jobs to wait", lambda: len(cluster.jobs("PD")) == 2, timeout=600)
            configuration.write_text(
                text.replace("buckets: 1", "buckets: 3") + "embedding: {storage_dtype: float32}\n"
            )
            resume()
            campaign.hold(0)
            kill(campaign.processes(0))
            campaign.expire_claims(0)
    finally:
        with contextlib.suppress(ClusterError):  # of nodes that are in service already
            resume()
    for each in (campaign, neighbor):
        assert each.computed_again() == 0
        assert each.master() == undisturbed.master()
