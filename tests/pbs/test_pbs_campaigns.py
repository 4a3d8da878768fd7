"""Whole campaigns through the PBS profiles: they end with the master of an undisturbed run,
whatever happens.
"""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from standin import Queue, StandIn

from conftest import ANY_PBS, REAL, Campaign
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.jobs.heartbeat import heartbeats
from support.campaign_runs import ROOT
from support.demo import GATHERED

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("lean")]


def records(campaign: Campaign) -> list[Completion]:
    return [
        read_completion(path) for path in sorted((campaign.vectors / "embedded").glob("*.json"))
    ]


@pytest.mark.usefixtures("any_pbs")
def test_one_gpu_per_job(
    campaign: Campaign, undisturbed: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In folders whose names a shell and qsub would read otherwise; the jobs' logs then lie in the
    home folder.
    """
    monkeypatch.setenv("HOME", str(campaign.folder.parent))
    odd = 'mit leer (x) [y] it\'s $HOME & so; "größe" 日本'
    folder = campaign.folder.rename(campaign.folder.parent / odd)
    campaign = Campaign(folder, "Ergebnisse (x) [y] größe & 日本")
    campaign.run(ANY_PBS, buckets=1, results=campaign.results)
    assert campaign.master() == undisturbed.master()
    assert (campaign.vectors / "checksums.sha256").exists()
    assert all(beat.job for beat in heartbeats(campaign.vectors))


@pytest.mark.skipif(
    REAL and os.environ.get("PBS_TEST_NODES", "1") == "1", reason="PBS_TEST_NODES does not say 2"
)
@pytest.mark.usefixtures("any_pbs")
def test_whole_nodes_two_at_a_time(campaign: Campaign, undisturbed: Campaign) -> None:
    """The job of a bucket takes two nodes."""
    resources = ["--set-resources", "embed:nodes=2", "embed:gpu=1", "embed:runtime=60"]
    campaign.run(ANY_PBS, GATHERED, *resources, buckets=1)
    assert campaign.master() == undisturbed.master()
    assert sum(record.computed for record in records(campaign)) == 129


@pytest.mark.usefixtures("any_pbs")
def test_snakemake_killed_while_jobs_run(campaign: Campaign, undisturbed: Campaign) -> None:
    """The job goes on, the same command takes it over, and no sequence is computed twice."""
    command = campaign.command(ANY_PBS, GATHERED, buckets=1)
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(campaign.vectors.glob("store/*/fingerprint.json")) and first.poll() is None:
        time.sleep(0.1)
    assert first.poll() is None
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    campaign.run(ANY_PBS, GATHERED, "--nolock", buckets=1)
    assert campaign.master() == undisturbed.master()
    rows = sum(
        int(path.stem.split("-")[2]) for path in campaign.vectors.glob("store/*/parts/[0-9a-f]*.h5")
    )
    assert rows == 129


def test_a_site_of_ones_own_in_ten_lines(campaign: Campaign, pbs: StandIn) -> None:
    """The two files of profiles/README.md, as they stand there."""
    text = (
        (ROOT / "profiles" / "README.md")
        .read_text(encoding="utf-8")
        .partition("### Your own site in ten lines")[2]
    )
    profile, site = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[:2]
    assert len(profile.splitlines()) <= 10 and len(site.splitlines()) <= 10
    folder = campaign.folder / "my_site"
    folder.mkdir()
    (folder / "profile.yaml").write_text(profile)
    (folder / "site.yaml").write_text(site)
    pbs.config.queues["gpu"] = Queue("gpu")
    campaign.run(str(folder), "results/esm2_t3_untrained/embedded/0000.json", buckets=1)
    (record,) = records(campaign)
    assert record.computed == 129
    job = max(pbs.jobs.values(), key=lambda job: "ngpus" in job.arguments)
    assert "-q gpu -A my_project -l select=1:ncpus=4:ngpus=1:mem=" in job.arguments
    assert ":gpu_type=A100 -l place=scatter -l walltime=04:00:00" in job.arguments


def test_a_hundred_live_jobs_cost_the_main_process_little(campaign: Campaign, pbs: StandIn) -> None:
    """Two commands a look at most, under 300 MB, few threads; the jobs wait in a queue that is not
    started.
    """
    options = [
        "--jobs",
        "150",
        "--pbs-status-interval",
        "1",
        "--set-resources",
        "embed:pbs_queue=stoppedq",
    ]
    command = campaign.command(ANY_PBS, *options, buckets=100)
    with (campaign.folder / "out").open("w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        while pbs.count("qsub") < 101 and running.poll() is None:  # deduplicate before them
            time.sleep(0.1)
        before = len(pbs.calls)
        while len(pbs.calls) < before + 10 and running.poll() is None:
            time.sleep(0.1)
        calls = pbs.calls[before:]
        looks = sum(name == "qselect" and "-h" not in words for _, name, words in calls)
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{running.pid}/status").read_text().splitlines()
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGINT)
        running.wait(timeout=600)
    assert sum(job.queue == "stoppedq" for job in pbs.jobs.values()) == 100
    assert len(calls) <= 2 * (looks + 1)
    memory, threads = int(status["VmHWM"].split()[0]) / 1000, int(status["Threads"])
    print(f"{len(calls)} commands in {looks} looks; {memory:.0f} MB at most, {threads} threads")
    assert memory < 300
    assert threads < 20
    assert {job.state for job in pbs.jobs.values()} == {"F"}
