"""Whole campaigns through `snakemake --profile slurm`, and the forms that their jobs can have.

Each campaign ends with the master of an undisturbed run, value for value.
"""

import contextlib
import os
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
def test_two_models(cluster: Cluster, tmp_path: Path) -> None:
    """ESM-2 and ProtBERT over the same sequences, which one job reads: the rest is each model's."""
    campaign = Campaign(tmp_path / "c", cluster, buckets=2, sequences=40, lengths=(50, 200))
    path, other = campaign.folder / "config" / "config.yaml", "protbert_tiny"
    config = yaml.safe_load(path.read_text())
    weights = {MODEL: config["weights"], other: str(source("protbert"))}
    path.write_text(yaml.safe_dump(config | {"model": [MODEL, other], "weights": weights}))
    with campaign.running():
        pass
    assert set(map(tuple, campaign.states().values())) == {("COMPLETED",)}
    assert len(campaign.states()) == 1 + 2 * (2 + 3)
    for model in weights:
        proof = read_validation(campaign.folder / "results" / model / "validation.json")
        assert proof and proof.status == "passed" and proof.counts.statuses == {"embedded": 40}


@pytest.mark.usefixtures("tiny_models")
def test_dna(cluster: Cluster, tmp_path: Path) -> None:
    """DNABERT-S, by the layout of its checkpoint, on contigs and their reverse complements, which
    are one.
    """
    campaign = Campaign(tmp_path / "c", cluster, buckets=2, sequences=1)
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
    with campaign.running():
        pass
    assert set(map(tuple, campaign.states().values())) == {("COMPLETED",)}
    with plm_embed.open(campaign.folder / "results" / model) as embeddings:
        assert len(embeddings) == 20
        assert np.array_equal(embeddings["c0"], embeddings["c20"])


def test_job_arrays(campaign: Campaign, undisturbed: Campaign) -> None:
    """One array instead of two jobs, here with the type of the GPU named; a task that dies is
    submitted again.
    """
    campaign.edit_profile(("# gpu_model: a100", "gpu_model: h100"))
    with campaign.running(GATHERED, "--slurm-steady-array-jobs", "embed"):
        campaign.hold(0, 1)
        assert {campaign.gpus_of(bucket) for bucket in range(2)} == {("g2", gpu) for gpu in "01"}
        kill(campaign.processes(1))
        campaign.expire_claims(1)
        campaign.go_on(0)
    assert len([job for job in campaign.states() if "_" in job]) >= 2
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()


def test_scratch_that_cannot_be_used(
    cluster: Cluster, undisturbed: Campaign, tmp_path: Path
) -> None:
    """Each of five jobs but one is given a folder that is bad on its node: the log's path, its last
    lines, cause and remedy are on the screen.

    When nothing is named and what the node offers is bad, the next candidate is taken. Nothing is
    left on the nodes.
    """
    before = scratch_folders(cluster)  # a node that lost its power cleans up when it is used again
    campaign = Campaign(tmp_path / "c", cluster, buckets=5, lengths=(50, 100))
    campaign.adopt_weights(undisturbed)
    bad = cluster.folder / "bad"
    cases = {
        "/tmp/$NOT_SET": "an environment variable in it is not set",
        f"{bad}/ro": "not writable",
        f"{bad}/net": "a network filesystem (fuse.sshfs), not local to the node",
        f"{bad}/mem": "too small: 0.0 GB free",
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
        assert words.count("name another folder, or `auto`") >= 4
        assert len(list((campaign.folder / "results" / MODEL / "submissions").iterdir())) == 1

        campaign.edit_profile((f'scratch: "{named}[wildcards.submission]"', "scratch: auto"))
        cluster.set_scratch(bad / "mem")
        with campaign.running(f"results/{MODEL}/submissions/0003.json"):
            pass
    cluster.set_scratch()
    log = campaign.folder / "results" / "logs" / MODEL / "embed" / "0003.log"
    used = [
        line.split("scratch: ")[1] for line in log.read_text().splitlines() if "scratch: " in line
    ]
    assert used[-1].startswith("/tmp/plm.g")
    assert not Path(used[-1]).exists()
    assert scratch_folders(cluster) <= before


def test_whole_nodes(cluster: Cluster, undisturbed: Campaign, tmp_path: Path) -> None:
    """One job with four GPUs and as many workers; one of them dies, and the others and its
    successor do the rest.

    Gather runs beside Snakemake, as the profile says here.
    """
    campaign = Campaign(tmp_path / "c", cluster, profile="slurm-node", buckets=4)
    campaign.edit_profile(
        ('"buckets_per_submission":16', '"buckets_per_submission":16,"local_rules":["gather"]')
    )
    campaign.adopt_weights(undisturbed)
    with campaign.running(GATHERED):
        cluster.wait_for("four workers", lambda: len(campaign.workers(0)) == 4, timeout=600)
        assert campaign.gpus_of(0)[1] == "0,1,2,3"
        cluster.wait_for("parts", campaign.parts)
        kill(campaign.workers(0)[:1])
    assert set(map(tuple, campaign.states().values())) == {("COMPLETED",)}
    assert len(campaign.states()) == 2  # deduplicate and embed
    assert campaign.computed_again() == 0
    assert campaign.master() == undisturbed.master()
