"""Every kind of damage is found and named in words; a sound campaign gets its checksums."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plm_embed.fingerprint import LongSequences
from plm_embed.io import parquet as tables
from plm_embed.master.validate import validate
from plm_embed.master.validation_record import Validation, read_validation
from support.campaigns import EVERYTHING, MEAN, Campaign, gathered_campaign, reference
from support.damages import DAMAGES, drop_row, edit, edit_table
from support.made_up_sequences import make_records


@pytest.fixture(autouse=True)
def _made_up_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference knows the vectors that these campaigns are made with; rounding moves none."""
    use_reference(monkeypatch, reference)


def use_reference(monkeypatch: pytest.MonkeyPatch, compute: Any) -> None:
    path = "plm_embed.inference.reference"
    monkeypatch.setattr(f"{path}.reference_vectors", lambda *call, **_: compute(*call))
    monkeypatch.setattr(f"{path}.rounding_distances", lambda *_: {})


def check(campaign: Campaign, spot_checks: int = 4) -> list[str]:
    return validate(campaign.master, campaign.store, campaign.weights, spot_checks).problems


def report(campaign: Campaign) -> Validation:
    found = read_validation(campaign.master.with_name("validation.json"))
    assert found
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(
        tmp_path_factory.mktemp("sound"), fingerprint=EVERYTHING, out_of_memory=2
    )


@pytest.fixture
def campaign(sound: Campaign, tmp_path: Path) -> Campaign:
    """A copy of a sound campaign, to be damaged."""
    shutil.copytree(sound.root, tmp_path / "copy")
    return replace(sound, root=tmp_path / "copy")


@pytest.mark.parametrize(
    "fingerprint",
    [
        MEAN,
        EVERYTHING,
        replace(EVERYTHING, storage_dtype="bfloat16", long_sequences=LongSequences("crop", 30)),
        replace(MEAN, storage_dtype="float32", long_sequences=LongSequences("skip", 30)),
        replace(MEAN, compute_dtype="bfloat16", pooling=("per_residue",)),
        replace(MEAN, long_sequences=LongSequences("skip", 1)),
    ],
)
def test_a_sound_campaign_passes_and_gets_checksums(tmp_path: Path, fingerprint) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=fingerprint, buckets=4, out_of_memory=1)
    # by a job that was killed
    half_written = campaign.parts / ".tmp-0123-00000000-ffffffff-1-0123456789abcdef.h5"
    half_written.write_bytes(b"\x89HDF")
    assert check(campaign) == []
    found = report(campaign)
    assert found.status == "passed"
    assert {each.result for each in found.checks} == {"passed"}
    assert all(each.meaning.endswith(".") for each in found.checks)
    counts = found.counts
    assert counts.statuses and counts.records == sum(counts.statuses.values()) == 90
    folder = campaign.master.parent
    listed = subprocess.run(
        ["sha256sum", "-c", "checksums.sha256"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert listed.stdout.count(": OK") == 4


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_named(campaign: Campaign, name: str) -> None:
    damage, message = DAMAGES[name]
    checksums = campaign.master.parent / "checksums.sha256"
    checksums.write_text("of an earlier validation")
    damage(campaign)
    problems = check(campaign, spot_checks=0)
    assert any(re.search(message, line) for line in problems), problems
    assert report(campaign).status == "failed"
    assert not checksums.exists()


def test_a_master_of_other_vectors_is_found_by_the_reference(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(weights: Path, sequences: list[str], fingerprint) -> list[dict[str, np.ndarray]]:
        found = reference(weights, sequences, fingerprint)
        return [{name: 1.01 * vector for name, vector in each.items()} for each in found]

    use_reference(monkeypatch, other)
    problems = check(campaign, spot_checks=3)
    assert len(problems) == 3 * len(EVERYTHING.representations)
    assert all("to the reference, more than 0.0011" in line for line in problems)


@pytest.mark.parametrize(("compute", "close"), [("float32", False), ("bfloat16", True)])
def test_half_precision_has_its_own_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute, close
) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=replace(EVERYTHING, compute_dtype=compute))
    for factor, passes in ((1.002, close), (1.1, False)):

        def near(*call: Any, factor: float = factor) -> list[dict[str, np.ndarray]]:
            computed = reference(*call)
            return [{name: factor * v for name, v in vectors.items()} for vectors in computed]

        use_reference(monkeypatch, near)
        assert (check(campaign) == []) == passes


def test_spot_checks_are_repeatable_and_recorded(campaign: Campaign) -> None:
    check(campaign, spot_checks=7)
    first = report(campaign).spot_checks
    check(campaign, spot_checks=7)
    assert report(campaign).spot_checks == first
    assert len({spot.row for spot in first}) == 7
    assert all(spot.relative_l2 < 1e-3 and spot.cosine > 0.9999 for spot in first)


def test_a_reference_of_another_shape_is_a_problem(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def longer(weights: Path, sequences: list[str], fingerprint) -> list[dict[str, np.ndarray]]:
        found = reference(weights, sequences, fingerprint)
        return [
            {name: np.concatenate([vector, vector]) for name, vector in each.items()}
            for each in found
        ]

    use_reference(monkeypatch, longer)
    problems = check(campaign, spot_checks=3)
    assert problems and all("shape" in line for line in problems)


def test_odd_norms_are_listed_and_are_no_failure(tmp_path: Path, monkeypatch) -> None:
    from support import campaigns

    records = make_records()
    odd = next(record for record in records if record["key"])
    plain = campaigns.vectors
    monkeypatch.setattr(
        campaigns,
        "vectors",
        lambda sequence, fingerprint: {
            name: vector * (1000 if sequence == odd["sequence"] else 1)
            for name, vector in plain(sequence, fingerprint).items()
        },
    )
    campaign = gathered_campaign(tmp_path, records=records)
    assert check(campaign) == []
    norms = report(campaign).norms["mean_l3"]
    assert norms.outliers == 1 and norms.max and norms.median
    assert norms.listed[0].key == odd["key"]
    assert norms.listed[0].norm == norms.max > 1000 > norms.median > 1


def test_large_tables_are_compared_piece_by_piece(campaign: Campaign, monkeypatch) -> None:
    monkeypatch.setattr(tables, "_ROWS", 7)
    assert check(campaign) == []
    edit_table(campaign.index, 60, length=3)
    drop_row(campaign.records, 57)
    problems = check(campaign)
    assert any("length is 3, expected" in line for line in problems)
    assert any("a.fasta, record 57 is not where it belongs" in line for line in problems)


def test_surplus_completion_records_of_more_buckets_do_no_harm(campaign: Campaign) -> None:
    shutil.copy(campaign.embedded / "0001.json", campaign.embedded / "0007.json")
    assert check(campaign) == []


def test_a_list_of_problems_stays_readable(campaign: Campaign) -> None:
    edit(campaign, lambda file: file["length"].__setitem__(slice(None), 1))
    problems = check(campaign)
    rows = [line for line in problems if line.startswith("rows equal their parts")]
    assert len(rows) == 21
    assert rows[-1] == "rows equal their parts: and 36 more"
