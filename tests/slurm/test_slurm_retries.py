"""What a second attempt asks for, what is not tried again, and what an edit of the configuration
changes: nothing.
"""

import contextlib
import re
from functools import partial
from pathlib import Path

import psutil
from cluster import Cluster
from daemons import ClusterError
from processes import kill
from slurm_campaign import GATHERED, Campaign


def limits(campaign: Campaign) -> dict[str, list[tuple[str, int]]]:
    """By job, `rule_embed_wildcards_0000`: the state and the time limit in minutes of each
    attempt.
    """
    names = re.findall(r"SLURM run ID: (\S+)", campaign.words())
    fields = ("--format=Comment,State,TimelimitRaw", f"--name={','.join(names)}")
    found: dict[str, list[tuple[str, int]]] = {}
    for line in campaign.cluster.run("sacct", "-X", "-D", "-n", "-P", *fields).splitlines():
        job, state, minutes = line.split("|")
        found.setdefault(job, []).append((state.split()[0], int(minutes)))
    return found


def test_jobs_that_are_killed_are_submitted_again(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path
) -> None:
    """Each of four jobs dies in other ways after it has published parts; the next attempt computes
    the rest.

    Its time limit has grown after a time limit, but not above the partition's, and not after a
    kill. The job whose slurmstepd dies ends too, instead of waiting for it with the GPU. Snakemake
    passes on to its rule that the job is to end.
    """
    campaign, run = Campaign(tmp_path / "c", cluster, buckets=4), cluster.run
    campaign.adopt_weights(undisturbed)
    campaign.edit_profile(("# runtime: 240 * attempt", "runtime: 20 * attempt"))
    run("scontrol", "update", "partitionname=gpu", "MaxTime=30")
    try:
        with campaign.running(GATHERED):
            campaign.hold(0, 1, 2, 3)
            used = {campaign.gpus_of(bucket) for bucket in range(4)}
            run("scontrol", "update", f"jobid={campaign.job_of(0)[0]}", "EndTime=now+1")
            kill(campaign.processes(1))
            kill([campaign.step_of(2)])  # which ends what it had stopped
            run("scancel", "--signal=KILL", "--full", campaign.job_of(3)[0])
            campaign.expire_claims(1, 2, 3)
            campaign.hold(1)
            run("scancel", campaign.job_of(1)[0])
            campaign.hold(3)
            rule = psutil.Process(campaign.processes(3)[0])
            rule.parent().terminate()  # its Snakemake alone, as with proctrack/cgroup
            campaign.go_on(3)
    finally:
        run("scontrol", "update", "partitionname=gpu", "MaxTime=2-0")
    assert used == {("g1", gpu) for gpu in "0123"}
    jobs = (f"rule_embed_wildcards_{bucket:04d}" for bucket in range(4))
    timeout, killed, step, signaled = map(limits(campaign).__getitem__, jobs)
    assert timeout[0][0] == "TIMEOUT"  # whose limit SLURM has changed with its end
    assert timeout[1:] == [("COMPLETED", 30)]
    assert killed == [("FAILED", 20), ("CANCELLED", 20), ("COMPLETED", 20)]
    assert step == [("CANCELLED", 20), ("COMPLETED", 20)]
    assert signaled[0][0] in ("FAILED", "CANCELLED")
    assert signaled[1:] == [("FAILED", 20), ("COMPLETED", 20)]
    assert "stopped by a signal" in campaign.words()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_what_can_never_run_is_said_once_and_ends(campaign: Campaign) -> None:
    """An unknown partition, and a partition that gives less time than is asked for."""
    campaign.edit_profile(("slurm_partition: gpu", "slurm_partition: nosuch"))
    process = campaign.start(GATHERED)
    try:
        assert campaign.finish(process) == 1
    finally:
        campaign.abandon(process)
    # where it happens, and at the end
    assert campaign.words().count("Invalid partition name specified") == 2
    assert campaign.words().count("SLURM refuses it for the same reason") == 1
    assert campaign.words().count("is not tried again") == 2
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
    """The jobs embed what the main process checked, also in a second attempt."""
    resume = partial(campaign.cluster.run, "scontrol", "update", "nodename=g1,g2", "state=resume")
    campaign.cluster.run("scontrol", "update", "nodename=g1,g2", "state=drain", "reason=test")
    configuration = campaign.folder / "config" / "config.yaml"
    text = configuration.read_text()
    try:
        with campaign.running(GATHERED):
            campaign.cluster.wait_for(
                "both jobs to wait", lambda: len(campaign.cluster.jobs("PD")) == 2, timeout=600
            )
            configuration.write_text(
                text.replace("buckets: 2", "buckets: 3") + "embedding: {storage_dtype: float32}\n"
            )
            resume()
            campaign.hold(1)
            kill(campaign.processes(1))
            campaign.expire_claims(1)
    finally:
        with contextlib.suppress(ClusterError):  # of nodes that are in service already
            resume()
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_a_folder_with_every_character_that_means_something_to_a_shell(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path
) -> None:
    folder = tmp_path / "it's a $HOME & (co); [größe] `x` 日本"
    campaign = Campaign(folder, cluster)
    campaign.adopt(undisturbed)
    results = "results of $USER & (co); it's"
    (folder / "results").rename(folder / results)
    with campaign.running(
        f"{results}/{GATHERED.removeprefix('results/')}", "--config", f"results={results}"
    ):
        pass
    (folder / results).rename(folder / "results")
    assert campaign.master() == undisturbed.master()
