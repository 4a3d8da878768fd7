"""Whole campaigns through the PBS profiles: they end with the master of an undisturbed run, whatever happens."""

import json
import os
import signal
import subprocess
import time

import pytest
from standin import StandIn

from campaign_runs import snakemake_command
from conftest import CONFIG, Campaign

pytestmark = pytest.mark.workflow


def records(campaign: Campaign) -> list[dict[str, int]]:
    return [json.loads(path.read_text()) for path in sorted((campaign.vectors / "embedded").glob("*.json"))]


@pytest.mark.usefixtures("pbs")
def test_one_gpu_per_job(campaign: Campaign, undisturbed: Campaign) -> None:
    campaign.run("pbs")
    assert campaign.master() == undisturbed.master()
    assert (campaign.vectors / "checksums.sha256").exists()
    assert all(record["worker"]["job"] for record in records(campaign))  # type: ignore[call-overload,index]


@pytest.mark.usefixtures("pbs")
def test_whole_nodes_two_at_a_time(campaign: Campaign, undisturbed: Campaign) -> None:
    """One submission of two nodes with two workers each takes all buckets."""
    resources = ["--set-resources", "embed:nodes=2", "embed:gpu=2", "embed:runtime=60"]
    campaign.run("pbs", *resources, speed=CONFIG["speed"] | {"buckets_per_submission": 4})  # type: ignore[operator]
    assert campaign.master() == undisturbed.master()
    assert len(list((campaign.vectors / "submissions").glob("*.json"))) == 1
    assert sum(record["computed"] for record in records(campaign)) == 129


@pytest.mark.usefixtures("pbs")
def test_snakemake_killed_while_jobs_run(campaign: Campaign, undisturbed: Campaign) -> None:
    """The jobs go on, the same command takes them over, and no sequence is computed twice."""
    first = subprocess.Popen(campaign.command("pbs"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(1200):
        if list(campaign.vectors.glob("store/*/fingerprint.json")):
            break
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    unlock = snakemake_command(campaign.folder, "--unlock", **CONFIG)
    subprocess.run(unlock, check=True, capture_output=True)
    campaign.run("pbs")
    assert campaign.master() == undisturbed.master()
    rows = sum(int(path.stem.split("-")[2]) for path in campaign.vectors.glob("store/*/parts/[0-9a-f]*.h5"))
    assert rows == 129


def test_a_deleted_job_is_submitted_again(campaign: Campaign, undisturbed: Campaign, pbs: StandIn) -> None:
    running = subprocess.Popen(campaign.command("pbs"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deleted = ""
    for _ in range(1200):
        if not deleted and list(campaign.vectors.glob("store/*/fingerprint.json")):
            live = subprocess.run([pbs.bin / "qselect"], check=True, capture_output=True, text=True).stdout.split()
            if live:
                deleted = live[0]
                subprocess.run([pbs.bin / "qdel", deleted], check=False)
        if running.poll() is not None:
            break
        time.sleep(0.1)
    out, _ = running.communicate(timeout=240)
    assert running.returncode == 0, out
    assert deleted
    assert campaign.master() == undisturbed.master()
