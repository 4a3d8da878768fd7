"""Whole campaigns through `snakemake --profile slurm`, and the forms that their jobs can have.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from cluster import Cluster
from daemons import NODES
from processes import kill
from slurm_campaign import GATHERED, Campaign
from snakemake_run import MODEL, ROOT

import plm_embed
from plm_embed.master.validation_record import read_validation
from support.families import TINY, source, write_dnabert_s


def scratch_folders(cluster: Cluster) -> set[Path]:
    return {path for node in NODES for path in (cluster.folder / "scratch" / node).iterdir()}


def test_a_whole_campaign(undisturbed: Campaign) -> None:
    """The fixture has looked at its jobs and at what they left on the nodes."""
    proof = read_validation(undisturbed.folder / "results" / MODEL / "validation.json")
    assert proof and proof.status == "passed"
    assert proof.counts.statuses == {"embedded": undisturbed.sequences}


@pytest.fixture
def tiny_models(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and commands know the tests' models of all families."""
    folders = (ROOT / "tests" / "support" / "tiny_models_known", ROOT / "tests")
    monkeypatch.setitem(cluster.env, "PYTHONPATH", os.pathsep.join(map(str, folders)))


@pytest.mark.usefixtures("tiny_models")
def test_two_models(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """ESM-2 and ProtBERT over the same sequences, which one job reads: the rest is each model's."""
    campaign = Campaign(tmp_path / "c", cluster, buckets=1, sequences=20, lengths=(50, 200))
    campaign.adopt_weights(undisturbed)
    path, other = campaign.folder / "config" / "config.yaml", "protbert_tiny"
    config = yaml.safe_load(path.read_text())
    models, weights = [MODEL, other], {other: str(source("protbert"))}
    path.write_text(yaml.safe_dump(config | {"model": models, "weights": weights}))
    with campaign.running(*(f"results/{model}/checksums.sha256" for model in models)):
        pass
    each = ("embed", "gather", "validate")
    assert list(campaign.states().values()) == [["COMPLETED"]] * (1 + 2 * len(each))
    for model in models:
        proof = read_validation(campaign.folder / "results" / model / "validation.json")
        assert proof and proof.status == "passed" and proof.counts.statuses == {"embedded": 20}


@pytest.mark.usefixtures("tiny_models")
def test_dna(cluster: Cluster, tmp_path: Path) -> None:
    """DNABERT-S, by the layout of its checkpoint, on contigs and their reverse complements, which
    are one.
    """
    campaign = Campaign(tmp_path / "c", cluster, buckets=1, sequences=1)
    random, turned = Random(1), str.maketrans("ACGT", "TGCA")
    contigs = ["".join(random.choices("ACGT", k=random.randint(100, 900))) for _ in range(20)]
    contigs += [contig.translate(turned)[::-1] for contig in contigs[:5]]
    lines = (f">c{number}\n{contig}\n" for number, contig in enumerate(contigs))
    (campaign.folder / "proteins.fasta").write_text("".join(lines))
    path, model = campaign.folder / "config" / "config.yaml", TINY["dnabert"].name
    config = yaml.safe_load(path.read_text())
    weights = str(write_dnabert_s(tmp_path / "published"))
    own = {"model": model, "weights": weights, "residues": {"strand": "canonical"}}
    path.write_text(yaml.safe_dump(config | own))
    with campaign.running(f"results/{model}/records.parquet"):
        pass
    assert list(campaign.states().values()) == [["COMPLETED"]] * 3
    with plm_embed.open(campaign.folder / "results" / model) as embeddings:
        assert len(embeddings) == 20
        assert np.array_equal(embeddings["c0"], embeddings["c20"])


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
