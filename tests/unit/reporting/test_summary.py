"""The last words of a run: what came out, where it lies, how to open it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.io.sealed import read_sealed, write_sealed
from plm_embed.reporting.facts import collect
from plm_embed.reporting.summary import summarize
from support.campaigns import MEAN, make_campaign
from support.damages import flip_a_bit


def run(text: str) -> object:
    """Execute the lines of Python that a summary ends with; the value of the last one."""
    *lines, last = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    return eval(last, names)


def test_summary_counts_and_opens(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, out_of_memory=2)
    campaign.gather()
    text = summarize(campaign.results)
    assert "records     90\n" in text
    assert "unique      58 sequences\n" in text
    assert "embedded    80 records, 8 of them with events\n" in text
    assert "skipped     10 records (6 empty, 3 out_of_memory, 1 text_before_first_header)\n" in text
    assert "validation  not done\n" in text
    assert f"{campaign.master}: esm2_t3_untrained, 56 x 16" in text
    found = run(text)
    assert isinstance(found, np.ndarray) and found.shape == (1, 16)


def test_summary_of_matrices_per_residue(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, fingerprint=replace(MEAN, pooling=("per_residue",)))
    campaign.gather()
    found = run(summarize(campaign.results))
    assert isinstance(found, np.ndarray) and found.shape[1] == 16


def test_summary_says_how_validation_went(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    campaign.gather()
    report = campaign.results / "validation.json"
    checks = [{"check": "keys", "problems": 0}, {"check": "finite", "problems": 0}]
    write_sealed(report, {"checks": checks, "spot_checks": [{}] * 4})
    assert "validation  passed (2 checks, 4 vectors computed again)" in summarize(campaign.results)
    checks[1]["problems"] = 3
    write_sealed(report, {"checks": checks, "spot_checks": []})
    assert f"validation  FAILED: finite (see {report})" in summarize(campaign.results)
    flip_a_bit(report)
    with pytest.raises(
        PlmEmbedError, match=r"validation\.json: .*; run `snakemake --forcerun validate`"
    ):
        summarize(campaign.results)


def test_summary_without_vectors_or_master(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="run the workflow first"):
        summarize(tmp_path)
    campaign = make_campaign(
        tmp_path, fingerprint=replace(MEAN, long_sequences=LongSequences("skip", 1))
    )
    campaign.gather()
    assert "0 x 0" in summarize(campaign.results)


def test_summary_warns_of_sequences_that_the_master_was_not_gathered_from(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    campaign.gather()
    assert "warning" not in summarize(campaign.results)
    summary = campaign.sequences / "summary.json"
    grown = read_sealed(summary, "a summary", "")
    write_sealed(summary, grown | {"records": grown["records"] + 1})
    warning = "of other sequences than the master was gathered from; run `snakemake` again"
    assert f"warning     {summary}: {warning}" in summarize(campaign.results)
    assert collect(campaign.results).outdated == f"{summary}: {warning}"
