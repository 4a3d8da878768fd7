"""The workflow as a module of another one: tests/workflow/module, which uses it twice."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plm_embed.errors import RUN_AGAIN, delete
from plm_embed.master.validation_record import read_validation
from support.campaign_runs import ROOT
from support.deployed import deployed, repository_of_the_rules
from support.families import source

pytestmark = pytest.mark.workflow

CONSUMER = Path(__file__).parent / "module" / "Snakefile"
ESM, BERT = "esm2_t3_untrained", "protbert_tiny"
EMBED = ("--set-resources", "esm2_embed:toks_per_batch=4096", "protbert_embed:toks_per_batch=4096")
MASTERS = (
    Path("embedded/esm2/esm/out", ESM, "master_esm2_embeddings.h5"),
    Path("bert", BERT, "master_protbert_embeddings.h5"),
)


def consumer(folder: Path, snakefile: str) -> Path:
    """A folder of the other workflow, which finds this one at `snakefile`."""
    shutil.copytree(ROOT / "config" / "demo", folder / "config" / "demo")
    shutil.copy(CONSUMER, folder)
    config = {
        "plm_embed": snakefile,
        "esm2": {"inputs": "chosen.fasta", "model": ESM, "results": "esm/out", "buckets": 1},
        "protbert": {
            "inputs": ["chosen.fasta"],
            "model": BERT,
            "weights": str(source("protbert")),
            "results": "bert",
            "buckets": 1,
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process here knows ProtBERT's tiny model."""
    known = ROOT / "tests" / "support" / "tiny_models_known"
    folders = [known, ROOT / "tests", ROOT / "workflow" / "src"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))


def snakemake(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *options], cwd=folder, check=False, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_a_workflow_that_uses_it_twice(tmp_path: Path) -> None:
    folder = consumer(tmp_path / "work", str(ROOT / "workflow" / "Snakefile"))
    done = snakemake(folder, "--cores", "2", "--printshellcmds", *EMBED)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("--toks-per-batch 4096") == done.stdout.count("plm_embed embed") == 2
    assert "localrules directive" not in done.stdout
    for master in MASTERS:
        proof = read_validation(folder / master.parent / "validation.json")
        assert proof and proof.status == "passed"
        assert (folder / master).is_file()
    # nothing but what the other workflow and its configuration named
    names = {path.name for path in folder.iterdir()} - {".snakemake"}
    assert names == {
        "Snakefile", "config.yaml", "config", "chosen.fasta", "embedded", "bert",
    }  # fmt: skip
    assert {path.name for path in (folder / "embedded" / "esm2").iterdir()} == {
        "esm", "chosen.fasta",
    }  # fmt: skip
    again = snakemake(folder, "-n")
    assert again.returncode == 0 and "Nothing to be done" in again.stdout, again.stdout
    deleted_files_are_made_again(folder, MASTERS[0].parent)


def deleted_files_are_made_again(folder: Path, model: Path) -> None:
    """The remedy of all messages, which therefore need not know the rules' names here."""
    rules = {
        "weights.json": "weights",
        "records.parquet": "gather_esm2",
        "checksums.sha256": "validate",
        "config.yaml": "report",
        "../sequences/summary.json": "deduplicate",
        "embedded": "embed",
    }
    for name, rule in rules.items():
        assert delete(folder / model / name) == f"delete {folder / model / name} and {RUN_AGAIN}"
        (folder / model / name).rename(folder / "aside")
        planned = snakemake(folder, "-n").stdout
        assert re.search(rf"^esm2_{rule} +1$", planned, re.M), planned
        assert not re.search(r"^protbert_\w+ +[0-9]+$", planned, re.M), planned
        (folder / "aside").rename(folder / model / name)


def test_rules_fetched_from_a_repository(tmp_path: Path) -> None:
    """As snakedeploy writes it: the folder names the module, and the package is installed."""
    repository = repository_of_the_rules(tmp_path / "plm-embed")
    folder = deployed(tmp_path / "deployed", repository)
    done = snakemake(folder, "-n", "--printshellcmds")
    assert done.returncode == 0, done.stdout
    assert "git+file" not in done.stdout.partition("Reasons:")[0]
