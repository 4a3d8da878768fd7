"""The last words of a run: what came out, where it lies, how to open it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import VALIDATION, Check, Counts, Spot, Validation
from plm_embed.reporting.facts import collect
from plm_embed.reporting.outputs import CONFIG
from plm_embed.reporting.report import write_report
from plm_embed.reporting.summary import gathered, summarize
from plm_embed.sequences.summary import read_summary
from plm_embed.workflow.config import write_kept
from support.campaigns import MEAN, gathered_campaign, seal_sequences
from support.damages import flip_a_bit
from support.made_up_sequences import SOURCES, make_records

_KEYS = Check(check="keys", result="passed", problems=0, listed=())
PASSED = Validation(
    status="passed",
    checks=(_KEYS, replace(_KEYS, check="finite")),
    counts=Counts(),
    norms={},
    spot_checks=tuple(
        Spot(row=row, key="", representation="mean_l3", relative_l2=0.0, cosine=1.0)
        for row in (0, 5) * 3
    ),
    fingerprint=MEAN,
    files={},
)


def summary(folder: Path, **options: Any) -> str:
    """The summary of a gathered campaign."""
    return summarize(gathered(gathered_campaign(folder, **options).results))


def opened(text: str) -> np.ndarray:
    """Execute the lines of Python that a summary ends with; the value of the last one."""
    *lines, last = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    value = eval(last, names)
    assert isinstance(value, np.ndarray)
    return value


def test_summary_counts_and_opens(tmp_path: Path) -> None:
    text, folder = summary(tmp_path, out_of_memory=2), tmp_path / "results" / MEAN.model
    for line in (
        "records     90",
        "unique      58 sequences",
        "embedded    80 records, 8 of them with events; see `events` in records.parquet",
        "skipped     10 records (6 empty, 3 out_of_memory, 1 text_before_first_header)",
        "validation  not done",
        f"per record  {folder / 'records.parquet'}",
    ):
        assert f"{line}\n" in text
    assert f"{folder / 'master_esm2_embeddings.h5'}: esm2_t3_untrained, 56 x 16" in text
    assert "default" not in text and opened(text).shape == (1, 16)


@pytest.mark.parametrize("name", ['of "me" \\n\\', "back\\slash\\n", 'both\\"', "Größe's"])
def test_summary_opens_under_any_path(tmp_path: Path, name: str) -> None:
    assert opened(summary(tmp_path / name)).shape == (1, 16)


def test_summary_of_matrices_per_residue(tmp_path: Path) -> None:
    text = summary(tmp_path, fingerprint=replace(MEAN, pooling=("per_residue",)))
    assert opened(text).shape[1] == 16


def test_summary_says_which_of_several_vectors_is_read_without_a_name(tmp_path: Path) -> None:
    several = replace(MEAN, layers=(2, 3), pooling=("mean", "max"))
    line = "\ndefault representation: mean_l2; also: max_l2, max_l3, mean_l3\n"
    assert line in summary(tmp_path, fingerprint=several)


def test_summary_says_how_validation_went(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    report = campaign.master.with_name("validation.json")
    keys, finite = PASSED.checks
    failed = replace(finite, result="failed", problems=3)
    for validation, words in (
        (PASSED, "passed (2 checks, 2 sequences recomputed)"),
        (replace(PASSED, finished="2026-11-26T20:10:05"), "passed on 2026-11-26 20:10 (2 checks"),
        (replace(PASSED, status="failed", checks=(keys, failed)), f"FAILED: finite (see {report})"),
    ):
        write_sealed(report, validation)
        assert f"validation  {words}" in summarize(gathered(campaign.results))
    flip_a_bit(report)
    remedy = r"validation\.json: .*; delete .*validation\.json and run the campaign again"
    with pytest.raises(PlmEmbedError, match=remedy):
        gathered(campaign.results)


def test_summary_without_vectors_or_master(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="run the workflow first"):
        gathered(tmp_path)
    text = summary(tmp_path, fingerprint=replace(MEAN, long_sequences=LongSequences("skip", 1)))
    reasons = "6 empty, 1 text_before_first_header, 83 too_long"
    assert text.startswith(f"No record could be embedded: {reasons}.\n")
    assert "0 x 0" not in text and "plm_embed.open" not in text
    assert collect(tmp_path / "results").status == "pending"


def test_a_wrong_column_of_sequences_is_asked_about(tmp_path: Path) -> None:
    skipped = {"status": "skipped", "reason": "unknown_residues", "key": None, "length": None}
    records = [record | skipped for record in make_records(3)]
    campaign = gathered_campaign(tmp_path, records=records)
    table = {"path": SOURCES[1], "sequence": "lab"}
    folder = campaign.master.parent
    write_kept(folder / CONFIG, {"inputs": [SOURCES[0], table]}, "as run")
    write_sealed(folder / VALIDATION, PASSED)
    first, *_ = summarize(gathered(campaign.results)).splitlines()
    question = "Is `lab` the right column of sequences?"
    assert first == f"No record could be embedded: 3 unknown_residues. {question}"
    write_report(collect(campaign.results), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<span class="badge empty">✗ no record has a vector' in page
    assert "There is no vector to check." in page


def test_summary_warns_of_sequences_that_the_master_was_not_gathered_from(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    assert "warning" not in summarize(gathered(campaign.results))
    seal_sequences(campaign.sequences, records=read_summary(campaign.sequences).records + 1)
    warning = f"The sequences in {campaign.sequences} have changed since the master was gathered"
    assert f"warning     {warning}" in summarize(gathered(campaign.results))
