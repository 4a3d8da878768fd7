"""Every kind of damage is found and named in words; a sound campaign gets its checksums."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.io import parquet as tables
from plm_embed.master.validate import validate
from plm_embed.master.validation_record import Validation, read_validation
from support import campaigns
from support.campaigns import EVERYTHING, MEAN, Campaign, gathered_campaign, reference
from support.damages import DAMAGES, edit, edit_table, take_rows
from support.made_up_sequences import make_records


@pytest.fixture(autouse=True)
def _made_up_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference knows the vectors that these campaigns are made with; rounding moves none."""
    use_reference(monkeypatch, lambda vector: vector)


def use_reference(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    def compute(*call: Any, **_: int) -> list[dict[str, np.ndarray]]:
        return [
            {name: change(vector) for name, vector in vectors.items()}
            for vectors in reference(*call)
        ]

    path = "plm_embed.inference.reference"
    monkeypatch.setattr(f"{path}.reference_vectors", compute)
    monkeypatch.setattr(f"{path}.rounding_distances", lambda *_: {})


def check(campaign: Campaign, spot_checks: int = 4) -> list[str]:
    return validate(campaign.master, campaign.store, campaign.weights, spot_checks).problems


def report(campaign: Campaign) -> Validation:
    validation = read_validation(campaign.master.with_name("validation.json"))
    assert validation
    return validation


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """A sound campaign, to be damaged."""
    return gathered_campaign(tmp_path, fingerprint=EVERYTHING, out_of_memory=2)


@pytest.mark.parametrize(
    "fingerprint",
    [
        EVERYTHING,
        replace(EVERYTHING, storage_dtype="bfloat16", long_sequences=LongSequences("crop", 30)),
        replace(MEAN, storage_dtype="float32", long_sequences=LongSequences("skip", 30)),
        replace(MEAN, compute_dtype="bfloat16", pooling=("per_residue",)),
        replace(MEAN, long_sequences=LongSequences("skip", 1)),
    ],
)
def test_a_sound_campaign_passes_and_gets_checksums(
    tmp_path: Path, fingerprint: Fingerprint
) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=fingerprint, out_of_memory=2)
    # by a job that was killed
    half_written = campaign.parts / ".tmp-0123-00000000-ffffffff-1-0123456789abcdef.h5"
    half_written.write_bytes(b"\x89HDF")
    assert check(campaign) == []
    validation = report(campaign)
    assert validation.status == "passed"
    assert {check.result for check in validation.checks} == {"passed"}
    assert all(check.meaning.endswith(".") for check in validation.checks)
    counts = validation.counts
    assert counts.statuses and counts.records == sum(counts.statuses.values()) == 90
    command = ["sha256sum", "-c", "checksums.sha256"]
    folder = campaign.master.parent
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert listed.stdout.count(": OK") == 4


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_named(campaign: Campaign, name: str) -> None:
    checksums = campaign.master.parent / "checksums.sha256"
    checksums.write_text("of an earlier validation")
    for damage, _ in DAMAGES[name]:
        damage(campaign)
    problems = check(campaign, spot_checks=0)
    for _, message in DAMAGES[name]:
        assert any(re.search(message, line) for line in problems), (message, problems)
    assert report(campaign).status == "failed"
    assert not checksums.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vector: 1.01 * vector, "to the reference, more than 0.0011"),
        (lambda vector: np.concatenate([vector, vector]), "shape .*, the reference gives"),
    ],
)
def test_a_master_of_other_vectors_is_found_by_the_reference(
    campaign: Campaign,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[np.ndarray], np.ndarray],
    message: str,
) -> None:
    use_reference(monkeypatch, change)
    problems = check(campaign, spot_checks=3)
    assert len(problems) == 3 * len(EVERYTHING.representations)
    assert all(re.search(message, line) for line in problems)


@pytest.mark.parametrize(("compute", "close"), [("float32", False), ("bfloat16", True)])
def test_half_precision_has_its_own_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: Any, close: bool
) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=replace(MEAN, compute_dtype=compute))
    use_reference(monkeypatch, lambda vector: 1.002 * vector)
    assert (check(campaign) == []) == close
    use_reference(monkeypatch, lambda vector: 1.1 * vector)
    assert check(campaign)


def test_spot_checks_are_repeatable_and_recorded(campaign: Campaign) -> None:
    check(campaign, spot_checks=7)
    first = report(campaign).spot_checks
    check(campaign, spot_checks=7)
    assert report(campaign).spot_checks == first
    assert len({spot.row for spot in first}) == 7
    assert all(spot.relative_l2 < 1e-3 and spot.cosine > 0.9999 for spot in first)


def test_odd_norms_are_listed_and_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, plain = make_records(), campaigns.vectors
    odd = next(record for record in records if record["key"])

    def enlarged(sequence: str, fingerprint: Fingerprint) -> dict[str, np.ndarray]:
        factor = 1000 if sequence == odd["sequence"] else 1
        return {name: factor * vector for name, vector in plain(sequence, fingerprint).items()}

    monkeypatch.setattr(campaigns, "vectors", enlarged)
    campaign = gathered_campaign(tmp_path, records=records)
    assert check(campaign) == []
    norms = report(campaign).norms["mean_l3"]
    assert norms.outliers == 1 and norms.max and norms.median
    assert norms.listed[0].key == odd["key"]
    assert norms.listed[0].norm == norms.max > 1000 > norms.median > 1


def test_large_tables_are_compared_piece_by_piece(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_ROWS", 7)
    # left by a campaign of more buckets
    shutil.copy(campaign.embedded / "0001.json", campaign.embedded / "0007.json")
    assert check(campaign) == []
    edit_table(campaign.index, 60, length=3)
    take_rows(campaign.records, range(57), range(58, 90))
    problems = check(campaign)
    assert any("length is 3, expected" in line for line in problems)
    assert any("a.fasta, record 57 is not where it belongs" in line for line in problems)


def test_a_list_of_problems_stays_readable(campaign: Campaign) -> None:
    edit(campaign, lambda file: file["length"].__setitem__(slice(None), 1))
    rows = [line for line in check(campaign) if line.startswith("rows equal their parts")]
    assert len(rows) == 21
    assert rows[-1] == "rows equal their parts: and 36 more"
