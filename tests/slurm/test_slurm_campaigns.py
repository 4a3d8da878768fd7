"""Whole campaigns through `snakemake --profile slurm`, undisturbed and with every kind of trouble.

Each ends with the master of an undisturbed run, value for value.
"""

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from cluster import NODES, Cluster, process_name
from slurm_campaign import GATHERED, MODEL, Campaign


def kill(processes: list[int]) -> None:
    assert processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


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


def scratch_folders(cluster: Cluster) -> set[Path]:
    return {path for node in NODES for path in (cluster.folder / "scratch" / node).iterdir()}


def test_a_whole_campaign(undisturbed: Campaign) -> None:
    assert undisturbed.computed_again() == 0
    assert set(map(tuple, undisturbed.states().values())) == {("COMPLETED",)}
    scratch = undisturbed.cluster.folder / "scratch"
    assert not [path for node in NODES for path in (scratch / node).iterdir()]


def test_jobs_that_are_killed_are_submitted_again(
    campaign: Campaign, undisturbed: Campaign
) -> None:
    """Each of four jobs dies in another way after it has published parts; the next attempt computes
    the rest.
    """
    run = campaign.cluster.run
    with campaign.running(GATHERED):
        campaign.hold(0, 1, 2, 3)
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
    """All jobs are preempted, then their next node dies, then one is requeued by hand; Snakemake
    waits for them.
    """
    cluster = campaign.cluster
    campaign.edit_profile(
        ("slurm_partition: gpu", "slurm_partition: requeued"), ("# slurm_extra", "slurm_extra")
    )
    with campaign.running(GATHERED):
        campaign.hold(0, 1, 2, 3)
        jobs = {campaign.job_of(bucket) for bucket in range(4)}
        assert {node for _, node in jobs} == {"g1"}
        assert {campaign.gpus_of(bucket) for bucket in range(4)} == {("g1", gpu) for gpu in "0123"}
        on_g1 = [process for bucket in range(4) for process in campaign.processes(bucket)]
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
        campaign.hold(0, 1, 2, 3)
        assert all(campaign.job_of(bucket)[1] == "g2" for bucket in range(4))
        cluster.kill_node("g2")
        campaign.expire_claims(0, 1, 2, 3)
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
        campaign.hold(0, 1, 2, 3)
        jobs = {campaign.job_of(bucket) for bucket in range(4)}
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
        cluster.wait_for("preemption", lambda: len(cluster.jobs("PR")) == 4)
        campaign.expire_claims(0, 1, 2, 3)
        campaign.wait_for_parts(0, 1, 2, 3)
        cluster.run("scancel", other)
    states = campaign.states()
    assert all(states[job] == ["PREEMPTED"] for job, _ in jobs)
    assert sorted(map(tuple, states.values())).count(("COMPLETED",)) == 5  # four, and gather
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
        computing = set(range(4))

        def stopped() -> bool:
            # as soon as the worker is ready for the signal: before its first batch is done
            for bucket in list(computing):
                if any(map(awaits_sigterm, campaign.workers(bucket))):
                    for process in campaign.processes(bucket):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process, signal.SIGSTOP)
                    computing.remove(bucket)
            return not computing

        cluster.wait_for("four jobs to compute", stopped, timeout=600)
        assert not campaign.parts()
        jobs = {campaign.job_of(bucket) for bucket in range(4)}
        assert {node for _, node in jobs} == {"g1"}
        others.append(fill("g1"))
        cluster.wait_for(
            "g1 to be left", lambda: not {job for job, _ in jobs} & set(cluster.jobs("R", "CG"))
        )
        assert [len(campaign.parts(bucket)) for bucket in range(4)] == [1] * 4
        for log in (campaign.folder / "results" / "logs" / MODEL / "embed").iterdir():
            assert log.read_text().count("model loaded") == 1
        cluster.run("scancel", *others)
    states = campaign.states()
    assert all(states[job][0] in ("PREEMPTED", "FAILED", "CANCELLED") for job, _ in jobs)
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_twenty_kills(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """Each at a random instant of a computing job, eight on eight GPUs: no sequence is lost, little
    is done twice.
    """
    # slack, in processor time: until the batch is done and the part is written
    flush_seconds, slack = 0.5, 0.5
    campaign = Campaign(tmp_path / "c", cluster, buckets=8, flush_minutes=flush_seconds / 60)
    campaign.adopt_weights(undisturbed)
    campaign.edit_profile(("retries: 3", "retries: 20"))
    random, seen, lost = Random(4), set[tuple[str, str]](), list[tuple[float, float]]()
    with campaign.running(GATHERED) as process:
        cluster.wait_for(
            "eight jobs",
            lambda: all(campaign.processes(bucket) for bucket in range(8)),
            timeout=600,
        )
        seen = {campaign.gpus_of(bucket) for bucket in range(8)}
        while len(lost) < 20:
            assert process.poll() is None, f"all done after {len(lost)} kills"
            computing = [
                bucket
                for bucket in range(8)
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
    assert seen == {(node, gpu) for node in ("g1", "g2") for gpu in "0123"}
    late = [(seconds - flush_seconds) * share for seconds, share in lost]
    assert max(late) <= slack, lost
    # a job that had just written its record may end well in spite of the kill
    assert sum("FAILED" in states for states in campaign.states().values()) >= 18
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
    print(f"work done twice, in seconds per kill: {sorted(lost)}")


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
def test_snakemake_is_killed(campaign: Campaign, undisturbed: Campaign, by: signal.Signals) -> None:
    """Its jobs go on. The same command, with the lock removed, goes on too, whatever the old jobs
    still do.
    """
    run = campaign.cluster.run
    first = campaign.start(GATHERED)
    try:
        campaign.hold(0, 1, 2, 3)
        late = campaign.job_of(0)[0]
        run("scontrol", "requeuehold", late)
        kill(campaign.processes(3))
        campaign.expire_claims(0, 3)
        first.send_signal(by)
        first.wait()
        assert len(campaign.cluster.jobs("R")) >= 2
        campaign.go_on(1, 2)
        assert campaign.finish(campaign.start("--unlock")) == 0
        with campaign.running(GATHERED):
            # The old job of the first bucket begins when its successor has done all.
            done = campaign.folder / "results" / MODEL / "embedded" / "0000.json"
            campaign.cluster.wait_for("the first bucket", done.exists, timeout=600)
            run("scontrol", "release", late)
        campaign.cluster.wait_for("no jobs", lambda: not campaign.cluster.jobs(), timeout=600)
        with campaign.running(GATHERED):
            pass
    finally:
        campaign.abandon(first)
    assert campaign.states()[late][-1] == "COMPLETED"
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_interrupts(campaign: Campaign, undisturbed: Campaign, interrupts: int) -> None:
    """Ctrl-C cancels the jobs, a second one does no harm, and the same command goes on."""
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


def test_job_arrays(campaign: Campaign, undisturbed: Campaign) -> None:
    """One array instead of four jobs, here with the type of the GPU named; a task that dies is
    submitted again.
    """
    campaign.edit_profile(("# gpu_model: a100", "gpu_model: h100"))
    with campaign.running(GATHERED, "--slurm-steady-array-jobs", "embed"):
        campaign.hold(0, 1, 2, 3)
        assert {campaign.gpus_of(bucket) for bucket in range(4)} == {("g2", gpu) for gpu in "0123"}
        kill(campaign.processes(2))
        campaign.expire_claims(2)
        campaign.go_on(0, 1, 3)
    assert len([job for job in campaign.states() if "_" in job]) >= 4
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_scratch_that_cannot_be_used(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path
) -> None:
    """Each of eight jobs is given a bad folder: the log's path, its last lines, cause and remedy
    are on the screen.

    When nothing is named and what the node offers is bad, the next candidate is taken. Nothing is
    left on the nodes.
    """
    before = scratch_folders(cluster)  # a node that lost its power cleans up when it is used again
    campaign = Campaign(tmp_path / "c", cluster, buckets=8, lengths=(50, 100))
    campaign.adopt_weights(undisturbed)
    bad, long = cluster.folder / "bad", cluster.folder / ("long" * 10)
    long.mkdir()
    cases = {
        "tmp/scratch": "not an absolute path",
        "/tmp/$NOT_SET": "an environment variable in it is not set",
        f"{bad}/absent": "no such folder",
        f"{bad}/ro": "not writable",
        f"{bad}/net": "a network filesystem (fuse.sshfs), not local to the node",
        f"{bad}/mem": "too small: 0.0 GB free",
        str(long): "too long a path",
        "$SLURM_TMPDIR": "",  # good
    }
    named = {f"{bucket:04d}": folder for bucket, folder in enumerate(cases)}
    campaign.edit_profile(
        ("retries: 3", "retries: 0"),
        ("# scratch: /local/scratch", f'scratch: "{named}[wildcards.submission]"'),
    )
    leave = contextlib.ExitStack()
    with leave:
        for kind, name in (("read-only", "ro"), ("network", "net"), ("memory", "mem")):
            leave.enter_context(cluster.mounted(kind, bad / name))
        process = campaign.start(GATHERED)
        try:
            assert campaign.finish(process) == 1
        finally:
            campaign.abandon(process)
        words = campaign.words()
        for bucket, (folder, reason) in enumerate(cases.items()):
            assert (f"speed.scratch: {folder}: {reason}" in words) == bool(reason)
            assert f"results/logs/{MODEL}/embed/{bucket:04d}.log" in words
        assert words.count("name another folder, or `auto`") >= 7
        assert len(list((campaign.folder / "results" / MODEL / "submissions").iterdir())) == 1

        campaign.edit_profile((f'scratch: "{named}[wildcards.submission]"', "scratch: auto"))
        cluster.set_scratch(bad / "mem")
        with campaign.running(GATHERED):
            pass
    cluster.set_scratch()
    logs = (campaign.folder / "results" / "logs" / MODEL / "embed").glob("*.log")
    assert ["scratch: /tmp/plm." in log.read_text() for log in sorted(logs)] == [True] * 7 + [False]
    assert scratch_folders(cluster) <= before
    assert not list(Path("/tmp").glob("plm.g[12].*"))


def test_whole_nodes(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """One job with four GPUs and as many workers; one of them dies, and the others and its
    successor do the rest.

    Gather runs beside Snakemake, as the profile says here.
    """
    campaign = Campaign(tmp_path / "c", cluster, profile="slurm-node")
    campaign.edit_profile(
        ('"buckets_per_submission":16', '"buckets_per_submission":16,"local_rules":["gather"]')
    )
    campaign.adopt(undisturbed)
    with campaign.running(GATHERED):
        cluster.wait_for("four workers", lambda: len(campaign.workers(0)) == 4, timeout=600)
        assert campaign.gpus_of(0)[1] == "0,1,2,3"
        cluster.wait_for("parts", campaign.parts)
        kill(campaign.workers(0)[:1])
    assert list(campaign.states().values()) == [["COMPLETED"]]
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
