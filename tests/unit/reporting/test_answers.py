"""The first screen of the report: what people ask first, of a campaign in every state."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import plm_embed
from plm_embed.fingerprint import SPANS
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import VALIDATION, read_validation
from plm_embed.reporting.facts import Facts, collect
from plm_embed.reporting.outputs import reader
from plm_embed.reporting.report import answers, commands
from support.finished import MODEL


@pytest.fixture
def folder(results: Path, tmp_path: Path) -> Path:
    """The model's folder in a copy of the campaign."""
    shutil.copytree(results, tmp_path / "results")
    return tmp_path / "results" / MODEL


def said(facts: Facts) -> dict[str, str]:
    return {question: f"{path} {answer}".strip() for question, path, answer, *_ in answers(facts)}


def test_a_valid_result_is_complete_right_and_there(results: Path) -> None:
    facts = collect(results)
    told = said(facts)
    assert told["Is it complete?"] == "Yes: 180 of 181 records have a vector, and 1 was skipped."
    assert told["Is it right?"].startswith(
        "Yes: all 14 checks passed, also the comparison of 2 sequences with "
    )
    assert told["Where is it?"].startswith(f"{facts.master} (")
    assert f"plm-embed export {facts.folder} " in commands(facts)
    assert f"plm-embed search {facts.folder} --id " in commands(facts)


@pytest.mark.parametrize("name", ["results", 'of "me" \\n\\'])
def test_the_lines_that_open_the_vectors_open_them(
    results: Path, tmp_path: Path, name: str
) -> None:
    copied = shutil.copytree(results, tmp_path / name)
    names = {"plm_embed": plm_embed}
    *lines, last = collect(copied).opening.splitlines()
    exec("\n".join(lines), names)
    assert eval(last, names).shape == (1, 32)


def test_nobody_is_led_to_vectors_that_failed(folder: Path) -> None:
    found = read_validation(folder / VALIDATION)
    assert found
    first, *others = found.checks
    bad = replace(first, result="failed", problems=1, listed=("0001.json: no such file",))
    write_sealed(folder / VALIDATION, replace(found, status="failed", checks=(bad, *others)))
    facts = collect(folder)
    told = said(facts)
    assert told["Is it right?"].startswith("No: 1 of 14 checks failed (completion records).")
    assert not told["Is it complete?"].startswith("Yes")
    assert facts.opening == "" and "export" not in commands(facts)


def test_a_run_under_way_says_how_far_it_is_and_what_stopped_it(folder: Path) -> None:
    for path in (folder / VALIDATION, *folder.glob("master_*"), folder / "embedded" / "0002.json"):
        path.unlink()
    facts = collect(folder)
    assert facts.status == "pending" and facts.opening == ""
    assert said(facts)["Is it complete?"] == "Not yet: 2 of 3 buckets finished."
    assert said(facts)["What now?"].startswith("Wait while the run is at work.")
    assert commands(facts) == f"plm-embed watch {folder.parent}"
    log = folder.parent / "logs" / MODEL / "embed" / "0002.log"
    log.parent.mkdir(parents=True)
    log.write_text("plm-embed: error: the disk is full\n", encoding="utf-8")
    assert f"the disk is full ({log})" in said(facts)["What now?"]


def test_a_changed_input_makes_a_result_incomplete(results: Path) -> None:
    facts = collect(results)
    facts.metadata = facts.metadata | {"inputs": {"records": 3}}
    assert said(facts)["Is it complete?"].startswith("No: the input has changed")


def test_each_kind_of_vectors_has_its_reader() -> None:
    assert reader(["mean_l3", "per_residue_l3"]) == "get"
    assert reader(["per_residue_l3"]) == "per_residue"
    assert reader([SPANS, "per_token_l3"]) == "per_token"
