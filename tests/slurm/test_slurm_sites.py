"""A profile that `plm-embed profile` writes, where there is one of
everything or several.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cluster import Cluster
from slurm_campaign import GATHERED, MASTER, Campaign
from snakemake_run import ROOT

import plm_embed

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


def command(campaign: Campaign, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plm_embed", *words], cwd=campaign.folder, env=campaign.cluster.env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


class Written(Campaign):
    """A campaign with a profile that `plm-embed profile` writes."""

    def command(self, *options: str) -> list[str]:
        return [
            *self.snakemake,
            "--snakefile",
            str(ROOT / "workflow" / "Snakefile"),
            "--profile",
            "mine",
            *options,
        ]


def test_a_profile_that_is_written_needs_no_editing(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path
) -> None:
    """In a folder, and with results, whose names have every character that means something to a
    shell.
    """
    folder = tmp_path / "it's a $HOME & (co); [größe] `x` 日本"
    results = "results of all & (co); [here]"
    campaign = Written(folder, cluster, buckets=1, sequences=20, lengths=(50, 100))
    campaign.adopt_weights(undisturbed)
    (folder / "results").rename(folder / results)
    asked = ("profile", "--output", "mine", "--account", "lab")
    several = command(campaign, *asked)
    assert several.returncode == 1
    words = "SLURM has several of these; choose --queue (gpu or requeued or ended or warned)"
    assert words in several.stderr
    refused = command(campaign, *asked, "--queue", "gpu", "--gpu-type", "nonesuch")
    assert refused.returncode == 1 and "sbatch --test-only " in refused.stderr
    assert not (folder / "mine").exists()
    for queue, gpus in (("gpu", 1), ("cpu", 0)):
        written = command(campaign, *asked, "--queue", queue)
        assert written.returncode == 0, written.stderr
        profile = yaml.safe_load((folder / "mine" / "profile.yaml").read_text())
        assert profile["set-resources"]["embed"]["gpu"] == gpus
    with campaign.running(GATHERED.replace("results", results), "--config", f"results={results}"):
        pass
    (embed,) = (job for job in campaign.accounted("Account", "Partition") if " embed " in job[-1])
    assert embed[:2] == ["lab", "cpu"]
    (folder / results).rename(folder / "results")
    with plm_embed.open(folder / MASTER) as embeddings:
        assert len(embeddings) == campaign.sequences
