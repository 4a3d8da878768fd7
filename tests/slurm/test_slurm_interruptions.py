"""SLURM that does not answer, and Snakemake that is killed or interrupted.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable

from processes import kill
from slurm_campaign import GATHERED, Campaign
from snakemake_run import MODEL


def test_no_accounting_and_a_silent_controller(campaign: Campaign, undisturbed: Campaign) -> None:
    """Without sacct the states come from squeue; a silence is waited out, by submissions too."""
    cluster = campaign.cluster

    with contextlib.ExitStack() as silence:
        silence.enter_context(cluster.silent("slurmctld"))
        with campaign.running(GATHERED, without="sacct"):
            waits = "The run waits, and submits later"
            cluster.wait_for("a submission that waits", lambda: waits in campaign.words())
            silence.close()
            campaign.hold(0)
            with cluster.silent("slurmctld"), cluster.silent("slurmdbd"):
                kill(campaign.processes(0))
                silences = campaign.words().count("SLURM does not answer (")
                cluster.wait_for(
                    "a question without an answer",
                    lambda: campaign.words().count("SLURM does not answer (") > silences,
                )
    words = campaign.words()  # no answer ends no job
    assert words.rindex("SLURM answers again") < words.index("Error in rule embed")
    # what the silent controller took without an answer was cancelled
    ends = [states for states in campaign.states("embed").values() if states != ["CANCELLED"]]
    assert sorted(ends) == [["COMPLETED"], ["FAILED"]]
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_snakemake_is_killed(embedding: Callable[..., Campaign], undisturbed: Campaign) -> None:
    """By kill -9, then by a logout. Its jobs go on. The same command, with the lock removed, goes
    on too, whatever the old jobs still do.
    """
    campaign = embedding(buckets=2)
    cluster = campaign.cluster

    def end(snakemake: "subprocess.Popen[bytes]", by: signal.Signals) -> None:
        snakemake.send_signal(by)
        snakemake.wait()
        assert cluster.jobs("R")
        assert campaign.finish(campaign.start("--unlock")) == 0

    process = campaign.start(GATHERED)
    try:
        campaign.hold(0, 1)
        late = campaign.job_of(0)[0]
        cluster.run("scontrol", "requeuehold", late)
        end(process, signal.SIGKILL)
        campaign.go_on(1)
        process = campaign.start(GATHERED)
        campaign.hold(0)
        end(process, signal.SIGHUP)
        kill(campaign.processes(0))
        with campaign.running(GATHERED):
            # The old job of the first bucket begins when its successors have done all.
            done = campaign.folder / "results" / MODEL / "embedded" / "0000.json"
            cluster.wait_for("the first bucket", done.exists, timeout=600)
            cluster.run("scontrol", "release", late)
            # before this block ends, which cancels what is left
            cluster.wait_for("the old job", lambda: late not in cluster.jobs(), timeout=600)
        with campaign.running(GATHERED):
            pass
    finally:
        campaign.abandon(process)
    assert campaign.states()[late][-1] == "COMPLETED"
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_interrupts(campaign: Campaign, undisturbed: Campaign) -> None:
    """Ctrl-C cancels the job, a second one does no harm, and the same command goes on."""
    process = campaign.start(GATHERED)
    try:
        campaign.wait_for_parts(0)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert campaign.finish(process, timeout=600) != 0
        campaign.cluster.wait_for("no jobs", lambda: not campaign.cluster.jobs())
    finally:
        campaign.abandon(process)
    with campaign.running(GATHERED):
        pass
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
