"""A real campaign of two families: ESM-2 alone, ProtBERT added later, ESM-2 dropped at last."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import plm_embed
from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.master.validation_record import read_validation
from plm_embed.models import registry
from plm_embed.reading.diff import compare
from plm_embed.reporting.watch import look
from support.campaign_runs import ROOT, snakemake_command, working_folder
from support.dag import Plan
from support.demo import ONE_THREAD
from support.families import TINY, source

pytestmark = pytest.mark.workflow

ESM, BERT = "esm2_t3_untrained", "protbert_tiny"
WEIGHTS = {ESM: "config/demo/esm2_t3_untrained.pt", BERT: str(source("protbert"))}
MASTERS = {ESM: "master_esm2_embeddings.h5", BERT: "master_protbert_embeddings.h5"}
RESULTS = (
    *("records.parquet", "validation.json", "report.html", "ro-crate-metadata.json"),
    *("checksums.sha256", "weights.json", "store"),
)


@dataclass(frozen=True)
class Runs:
    """The working folder after ESM-2 was run alone and ProtBERT was added, and what came before:
    times of change of ESM-2's files and of the sequences.
    """

    folder: Path
    before: dict[Path, int]
    second: subprocess.CompletedProcess[str]

    @property
    def results(self) -> Path:
        return self.folder / "results"


def times(results: Path) -> dict[Path, int]:
    files = (path for name in (ESM, "sequences") for path in (results / name).rglob("*"))
    return {path: path.stat().st_mtime_ns for path in files if path.is_file()}


def settings(*models: str) -> dict[str, Any]:
    return {
        "model": list(models),
        "weights": {name: WEIGHTS[name] for name in models},
        "buckets": 1,
    }


def run(folder: Path, *models: str) -> subprocess.CompletedProcess[str]:
    """By the command: a process of its own knows ProtBERT's tiny model from its start."""
    command = snakemake_command(folder, *ONE_THREAD, **settings(*models))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """Every process here knows ProtBERT's tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        folders = [ROOT / "tests" / "support" / "tiny_models_known", ROOT / "tests"]
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        for table in (registry.MODELS, registry._BY_NAME):
            patch.setitem(table, BERT, TINY["protbert"])
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = working_folder(tmp_path_factory.mktemp("several") / "work")
    run(folder, ESM)
    before = times(folder / "results")
    return Runs(folder, before, run(folder, ESM, BERT))


def test_each_model_has_a_validated_master_and_all_its_results(runs: Runs) -> None:
    masters = {}
    for model, master in MASTERS.items():
        folder = runs.results / model
        proof = read_validation(folder / "validation.json")
        assert proof and proof.status == "passed"
        assert all((folder / name).exists() for name in RESULTS)
        subprocess.run(
            ["sha256sum", "--check", "--quiet", "checksums.sha256"], cwd=folder, check=True
        )
        assert ".." not in (folder / "checksums.sha256").read_text()
        masters[model] = plm_embed.open(folder / master)
    esm, bert = masters.values()
    assert esm.ids == bert.ids and (esm.keys == bert.keys).all() and len(esm) > 100
    assert (esm.to_numpy()[:5] != bert.to_numpy()[:5]).any()


def test_a_model_that_is_added_leaves_sequences_and_the_other_model_alone(runs: Runs) -> None:
    assert times(runs.results) == runs.before
    said = runs.second.stderr
    assert "rule deduplicate:" not in said and said.count("rule embed:") == 1
    assert f"model={BERT}" in said and f"model={ESM}" not in said


def test_a_model_that_is_dropped_keeps_its_results(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.folder)
    assert not Plan(settings(BERT)).runs
    assert times(runs.results) == runs.before


def test_one_model_can_be_the_target(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    report = runs.results / BERT / "report.html"
    monkeypatch.chdir(runs.folder)
    report.rename("kept.html")
    assert Plan(settings(ESM, BERT)).runs == {"report": 1, "all": 1}
    assert not Plan(settings(ESM, BERT), targets=[f"results/{ESM}/report.html"]).runs
    Path("kept.html").rename(report)


def test_the_models_are_shown_side_by_side(runs: Runs) -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(group, list(words), catch_exceptions=False)
        return done.stdout

    text = said("summary", str(runs.results))
    assert text.index(f"model       {ESM}") < text.index(f"model       {BERT}")
    assert text.count("validation  passed") == 2
    assert f"model       {ESM}" not in said("summary", str(runs.results / ESM))
    assert look(runs.results).finished
    watched = said("watch", str(runs.results), "--once")
    for model in (ESM, BERT):
        assert f"{model}  ✓weights ✓sequences ✓embed ✓gather" in watched
    pages = said("report", str(runs.results)).splitlines()
    assert [page.partition(":")[0] for page in pages] == [
        *(str(runs.results / model / "report.html") for model in (ESM, BERT)),
        str(runs.results / "comparison.html"),
    ]
    comparison = (runs.results / "comparison.html").read_text(encoding="utf-8")
    assert all(f'href="{model}/report.html"' in comparison for model in (ESM, BERT))
    assert "Agreement of neighbors" in comparison


def test_what_reads_one_master_names_the_several(runs: Runs) -> None:
    both = ".*, .*".join(MASTERS.values())
    with pytest.raises(PlmEmbedError, match=f"holds 2 masters; open one of them: .*{both}"):
        plm_embed.open(runs.results)
    with pytest.raises(PlmEmbedError, match="open one of them"):
        compare(runs.results / ESM, runs.results, 0)
    assert compare(runs.results / ESM, runs.results / ESM / MASTERS[ESM], 0).equal
    done = CliRunner().invoke(
        group, ["report", str(runs.results), "--output", str(runs.folder / "one.html")]
    )
    assert isinstance(done.exception, PlmEmbedError)
    assert "holds 2 models; name the folder of one: " in str(done.exception)
