"""SLURM that does not answer, and Snakemake that is killed or interrupted.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster
from processes import kill
from slurm_campaign import GATHERED, Campaign
from snakemake_run import MODEL


def test_no_accounting_and_a_silent_controller(campaign: Campaign, undisturbed: Campaign) -> None:
    """Without sacct the states come from squeue; a silence is waited out, by submissions too."""
    cluster = campaign.cluster

    def asked_in_vain(times: int) -> bool:
        return campaign.words().count("waiting to submit") >= times

    with contextlib.ExitStack() as silence:
        silence.enter_context(cluster.silent("slurmctld"))
        with campaign.running(GATHERED, without="sacct"):
            cluster.wait_for("a submission that waits on", lambda: asked_in_vain(2))
            silence.close()
            campaign.wait_for_parts(0)
            processes = campaign.processes(0)
            with cluster.silent("slurmctld"), cluster.silent("slurmdbd"):
                kill(processes)
                campaign.expire_claims(0)
                silences = campaign.words().count("SLURM does not answer (squeue)")
                cluster.wait_for(
                    "a question without an answer",
                    lambda: campaign.words().count("SLURM does not answer (squeue)") > silences,
                )
    assert "SLURM answers again" in campaign.words()
    assert sorted(state for states in campaign.states().values() for state in states)[-2:] == [
        "COMPLETED",
        "FAILED",
    ]
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGHUP], ids=["kill -9", "logout"])
def test_snakemake_is_killed(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path, by: signal.Signals
) -> None:
    """Its jobs go on. The same command, with the lock removed, goes on too, whatever the old jobs
    still do.
    """
    campaign, run = Campaign(tmp_path / "c", cluster, buckets=3), cluster.run
    campaign.adopt_weights(undisturbed)
    first = campaign.start(GATHERED)
    try:
        campaign.hold(0, 1, 2)
        late = campaign.job_of(0)[0]
        run("scontrol", "requeuehold", late)
        kill(campaign.processes(2))
        campaign.expire_claims(0, 2)
        first.send_signal(by)
        first.wait()
        assert cluster.jobs("R")
        campaign.go_on(1)
        assert campaign.finish(campaign.start("--unlock")) == 0
        with campaign.running(GATHERED):
            # The old job of the first bucket begins when its successor has done all.
            done = campaign.folder / "results" / MODEL / "embedded" / "0000.json"
            cluster.wait_for("the first bucket", done.exists, timeout=600)
            run("scontrol", "release", late)
            # before this block ends, which cancels what is left
            cluster.wait_for("the old job", lambda: late not in cluster.jobs(), timeout=600)
        with campaign.running(GATHERED):
            pass
    finally:
        campaign.abandon(first)
    assert campaign.states()[late][-1] == "COMPLETED"
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_interrupts(campaign: Campaign, undisturbed: Campaign) -> None:
    """Ctrl-C cancels the jobs, a second one does no harm, and the same command goes on."""
    for interrupts in (1, 2):
        process = campaign.start(GATHERED)
        try:
            campaign.wait_for_parts(0)
            for _ in range(interrupts):
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)
            assert campaign.finish(process, timeout=600) != 0
            campaign.cluster.wait_for("no jobs", lambda: not campaign.cluster.jobs())
        finally:
            campaign.abandon(process)
    with campaign.running(GATHERED):
        pass
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
