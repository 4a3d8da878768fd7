"""The first screen of the report: what people ask first, of a campaign in every state."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.fingerprint import SPANS
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import VALIDATION, read_validation
from plm_embed.reporting.facts import Facts, collect
from plm_embed.reporting.report import write_report
from support.finished import MODEL


@pytest.fixture
def folder(copy: Path) -> Path:
    """The model's folder in a copy of the campaign."""
    return copy / MODEL


def first_screen(facts: Facts, page: Path) -> str:
    """The words of the report's first section."""
    write_report(facts, page)
    section = page.read_text(encoding="utf-8").split("<section")[1]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", section)))


def test_a_valid_result_is_complete_right_and_there(results: Path, tmp_path: Path) -> None:
    facts = collect(results)
    words = first_screen(facts, tmp_path / "report.html")
    for expected in (
        "Yes: 180 of 181 records have a vector; skipped: 1 unknown residues.",
        "Yes: all 14 checks passed, also the comparison of 2 sequences with ",
        f"{facts.master} (52.8 kB)",
        f"plm-embed search {facts.folder} --id '{facts.example}' ",
        f"plm-embed export {facts.folder} \\ vectors.parquet",
    ):
        assert expected in words


def test_nobody_is_led_to_vectors_that_failed(folder: Path) -> None:
    validation = read_validation(folder / VALIDATION)
    assert validation
    first, *others = validation.checks
    bad = replace(first, result="failed", problems=1, listed=("0001.json: no such file",))
    write_sealed(folder / VALIDATION, replace(validation, status="failed", checks=(bad, *others)))
    words = first_screen(collect(folder), folder / "report.html")
    assert "No: 1 of 14 checks failed (completion records). Do not use" in words
    assert "Yes" not in words and "import plm_embed" not in words and "export" not in words
    assert "completion records: 0001.json: no such file" in (folder / "report.html").read_text()


def test_a_run_under_way_says_how_far_it_is_and_what_stopped_it(folder: Path) -> None:
    for path in (folder / VALIDATION, *folder.glob("master_*"), folder / "embedded" / "0002.json"):
        path.unlink()
    words = first_screen(collect(folder), folder / "report.html")
    assert "Not yet: 2 of 3 buckets finished." in words and "import plm_embed" not in words
    assert "Wait while the run is at work." in words and f"plm-embed watch {folder.parent}" in words
    log = folder.parent / "logs" / MODEL / "embed" / "0002.log"
    log.parent.mkdir(parents=True)
    log.write_text("plm-embed: error: the disk is full\n", encoding="utf-8")
    words = first_screen(collect(folder), folder / "report.html")
    assert f"A step failed: the disk is full ({log})" in words


def test_a_changed_input_makes_a_result_incomplete(results: Path, tmp_path: Path) -> None:
    facts = collect(results)
    facts.metadata = facts.metadata | {"inputs": {"records": 3}}
    assert "No: the input has changed" in first_screen(facts, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("names", "call"),
    [
        (("mean_l3", "per_residue_l3"), "get(['a'])"),
        (("per_residue_l3",), "per_residue('a')"),
        ((SPANS, "per_token_l3"), "per_token('a')"),
    ],
)
def test_each_kind_of_vectors_has_its_reader(
    names: tuple[str, ...], call: str, tmp_path: Path
) -> None:
    facts = Facts(tmp_path, tmp_path, MODEL, rows=1, names=names, example="a")
    assert facts.opening.endswith(f"embeddings.{call}")
