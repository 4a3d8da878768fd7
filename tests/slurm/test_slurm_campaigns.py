"""Whole campaigns through `snakemake --profile slurm`, and the forms that their jobs can have.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from cluster import Cluster
from daemons import NODES
from processes import kill
from slurm_campaign import GATHERED, Campaign
from snakemake_run import MODEL

from plm_embed.master.validation_record import read_validation


def scratch_folders(cluster: Cluster) -> set[Path]:
    return {path for node in NODES for path in (cluster.folder / "scratch" / node).iterdir()}


def test_a_whole_campaign(undisturbed: Campaign) -> None:
    """The fixture has looked at its jobs and at what they left on the nodes."""
    proof = read_validation(undisturbed.folder / "results" / MODEL / "validation.json")
    assert proof and proof.status == "passed"
    assert proof.counts.statuses == {"embedded": undisturbed.sequences}


def test_scratch_that_cannot_be_used(embedding: Callable[..., Campaign]) -> None:
    """One of two jobs is given a folder that is bad on its node: the log's path, its last lines,
    cause and remedy are on the screen.

    When nothing is named and what the node offers is bad, the next candidate is taken. Nothing is
    left on the nodes.
    """
    campaign = embedding(buckets=2, lengths=(50, 100))
    cluster = campaign.cluster
    before = scratch_folders(cluster)  # a node that lost its power cleans up when it is used again
    bad = cluster.folder / "bad"
    reasons = {
        "ro": "not writable",
        "net": "a network filesystem (fuse.sshfs), not local to the node",
        "mem": "too small: 0.0 GB free",
    }
    named = {"0000": f"{bad}/net", "0001": "$SLURM_TMPDIR"}
    scratch = f'scratch: "{named}[wildcards.bucket]"'
    campaign.edit_profile(("retries: 3", "retries: 0"), ("# scratch: /local/scratch", scratch))
    log = f"results/logs/{MODEL}/embed/0000.log"
    with contextlib.ExitStack() as leave:
        for kind, name in (("read-only", "ro"), ("network", "net"), ("memory", "mem")):
            leave.enter_context(cluster.mounted(kind, bad / name))
        node = (*cluster.inside("g2"), "--pid")  # which has a /proc of its own
        for name, reason in reasons.items():
            asked = f"unfit({str(bad / name)!r}, 10**9, memory_allowed=True)"
            judge = f"from plm_embed.jobs.scratch import unfit; print({asked})"
            said = cluster.run(*node, sys.executable, "-c", judge)
            assert said.startswith(reason)

        process = campaign.start(GATHERED)
        try:
            assert campaign.finish(process) == 1
        finally:
            campaign.abandon(process)
        words = campaign.words()
        assert f"scratch: {bad}/net: {reasons['net']}" in words
        assert "name another folder, or `auto`" in words
        assert log in words and log.replace("0000", "0001") in words
        assert len(list((campaign.folder / "results" / MODEL / "embedded").glob("*.json"))) == 1

        campaign.edit_profile((scratch, "scratch: auto"))
        cluster.set_scratch(bad / "mem")
        with campaign.running(GATHERED):
            pass
    cluster.set_scratch()
    lines = (campaign.folder / log).read_text().splitlines()
    used = Path([line.split("scratch: ")[1] for line in lines if "scratch: " in line][-1])
    assert used.name.split(".")[1] in [sha256(name.encode()).hexdigest()[:8] for name in NODES]
    assert str(used.parent) in (tempfile.gettempdir(), "/tmp")
    assert not used.exists()
    assert scratch_folders(cluster) <= before


def test_whole_nodes(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """One job with four GPUs and as many workers; one of them dies, and the others and its
    successor do the rest.
    """
    campaign = Campaign(tmp_path / "c", cluster, profile="slurm-node", buckets=1)
    campaign.adopt(undisturbed)
    with campaign.running(GATHERED):
        cluster.wait_for("four workers", lambda: len(campaign.workers(0)) == 4, timeout=600)
        assert campaign.gpus_of(0)[1] == "0,1,2,3"
        cluster.wait_for("parts", campaign.parts)
        kill(campaign.workers(0)[:1])
    assert list(campaign.states("embed").values()) == [["COMPLETED"]]
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
