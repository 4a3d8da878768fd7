"""The literal command `snakemake --profile slurm`, with nothing edited, where there is one of
everything or several.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_campaign import Campaign
from snakemake_run import ROOT, SNAKEMAKE

OTHERS = ("requeued", "ended", "warned")
"""Partitions with GPUs beside `gpu`."""


@contextmanager
def one_of_each(cluster: Cluster) -> Iterator[None]:
    """One partition with GPUs that is up, and one account of the user."""
    for name in OTHERS:
        cluster.run("scontrol", "update", f"PartitionName={name}", "State=DOWN")
    cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", "DefaultAccount=lab")
    cluster.run("sacctmgr", "-i", "delete", "user", "root", "account=root")
    try:
        yield
    finally:
        cluster.run("sacctmgr", "-i", "add", "user", "root", "account=root")
        for name in OTHERS:
            cluster.run("scontrol", "update", f"PartitionName={name}", "State=UP")


class Unedited(Campaign):
    """A campaign with the profile as it is shipped, and nothing on the command line."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        # short, because each job has all four threads of the profile
        super().__init__(folder, cluster, sequences=40, lengths=(50, 100))
        shutil.copytree(ROOT / "profiles" / "slurm", self.folder / "slurm", dirs_exist_ok=True)

    def command(self, *options: str) -> list[str]:
        return [*SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "--profile", "slurm", *options]


@pytest.fixture
def unedited(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> Unedited:
    campaign = Unedited(tmp_path / "c", cluster)
    campaign.adopt_weights(undisturbed)
    return campaign


def test_one_account_and_one_partition_need_no_editing(
    cluster: Cluster, unedited: Unedited
) -> None:
    with one_of_each(cluster), unedited.running():
        pass
    said = unedited.log.read_text()
    assert (
        "plm-embed: SLURM (cluster bed): partition gpu, a submission is 1 GPU, 4 cores and 1 bucket"
        in said
    )
    assert "charged to lab" in said
    jobs = cluster.run(
        "sacct", "--allocations", "--noheader", "--parsable2", "--format=Partition,Account,WorkDir"
    )
    mine = {
        tuple(line.split("|")[:2])
        for line in jobs.splitlines()
        if line.endswith(f"|{unedited.folder}")
    }
    assert mine == {("gpu", "lab"), ("cpu", "lab")}


def test_several_of_both_are_listed_before_anything_runs(
    cluster: Cluster, unedited: Unedited
) -> None:
    before = set(cluster.jobs("all"))
    assert unedited.finish(unedited.start()) == 1
    (line,) = [line for line in unedited.log.read_text().splitlines() if "several" in line]
    assert (
        "several partitions have GPUs (gpu, requeued, ended, warned): add --set-resources "
        "embed:slurm_partition=" in line
    )
    assert "you have several accounts (lab, root): export SBATCH_ACCOUNT=NAME" in line
    assert set(cluster.jobs("all")) <= before  # SLURM forgets jobs that ended 300 s ago
    assert not Path(unedited.folder, "slurm_logs").exists()


def plm_embed(campaign: Campaign, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plm_embed", *words], cwd=campaign.folder, env=campaign.cluster.env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


class Written(Campaign):
    """A campaign with a profile that `plm-embed profile` writes."""

    def command(self, *options: str) -> list[str]:
        return [*SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "--profile", "mine", *options]


def test_a_profile_that_is_written_needs_no_editing(cluster: Cluster, tmp_path: Path) -> None:
    campaign = Written(tmp_path / "c", cluster, buckets=2, sequences=20, lengths=(50, 100))
    asked = ("profile", "--output", "mine", "--account", "lab")
    several = plm_embed(campaign, *asked)
    assert several.returncode == 1
    assert "several: partition with GPUs gpu, requeued, ended, warned; add --queue NAME" in (
        several.stderr
    )
    refused = plm_embed(campaign, *asked, "--queue", "gpu", "--gpu-type", "nonesuch")
    assert refused.returncode == 1 and "SLURM refuses a job with this profile" in refused.stderr
    assert not (campaign.folder / "mine").exists()
    written = plm_embed(campaign, *asked, "--queue", "gpu")
    assert written.returncode == 0, written.stderr
    with campaign.running():
        pass
    assert "partition gpu" in campaign.words() and "charged to lab" in campaign.words()
