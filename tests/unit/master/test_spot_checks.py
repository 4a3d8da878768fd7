"""Sequences that are drawn for the reference, and rows of a master against what it computed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.fingerprint import LongSequences
from plm_embed.keys import key
from plm_embed.master import spot_checks
from plm_embed.master.campaign import Campaign as Gathered
from plm_embed.master.campaign import read_campaign
from plm_embed.master.spot_checks import check_spots, draw
from plm_embed.master.validation_record import Validation
from plm_embed.store.parts import Part
from support.campaigns import (
    EVERYTHING,
    Campaign,
    gathered_campaign,
    reference,
    seal_sequences,
)
from support.made_up_sequences import make_records

LENGTHS = {record["key"]: record["length"] for record in make_records() if record["key"]}
REFERENCE = "plm_embed.inference.reference.reference_vectors"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("sound"), fingerprint=EVERYTHING, buckets=4)


def gathered(campaign: Campaign, **changes: Any) -> Gathered:
    """Return the sum of its completion records, with a changed fingerprint."""
    plan = read_campaign(campaign.sequences, campaign.embedded, campaign.store)
    plan.fingerprint = replace(plan.fingerprint, **changes)
    return plan


def drawn(campaign: Campaign, count: int, **changes: Any) -> dict[int, int]:
    """The lengths of the sequences of drawn rows."""
    with Part(campaign.master) as part:
        rows = draw(part, gathered(campaign, **changes), count)
        return {row: LENGTHS[part.keys[row].decode()] for row in rows.tolist()}


def checked(campaign: Campaign, count: int, **changes: Any) -> Validation:
    validation = Validation(status="passed", checks=[])
    plan = gathered(campaign, **changes)
    check_spots(validation, plan, campaign.master, campaign.weights, count)
    return validation


def test_other_rows_are_drawn_only_for_another_fingerprint(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    rows = drawn(campaign, 7)
    assert len(rows) == 7
    assert drawn(campaign, 7) == rows != drawn(campaign, 7, layers=(2,))
    # all where fewer are there than are asked for
    assert [*drawn(campaign, 1000)] == [*range(len(LENGTHS))]
    assert not caplog.text
    for field in ({"compute_dtype": "bfloat16"}, {"storage_dtype": "float32"}, {"engine": "other"}):
        other = replace(EVERYTHING, **field)  # type: ignore[arg-type]
        assert other.of_reference == EVERYTHING.of_reference


@pytest.mark.parametrize(
    ("long", "most", "longest"),
    [
        (LongSequences(), 30, 30),
        (LongSequences("crop", 10), 12, 24),
        (LongSequences("window", 10, 2), 12, 24),
        (LongSequences("window", 20, 2), 12, 12),
    ],
)
def test_only_sequences_that_the_reference_takes_are_drawn(
    campaign: Campaign,
    long: LongSequences,
    most: int,
    longest: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spot_checks, "SPOT_TOKENS", most)
    monkeypatch.setattr(spot_checks, "SPOT_PIECES", 2)
    lengths = drawn(campaign, 1000, long_sequences=long).values()
    assert longest - 3 <= max(lengths) <= longest


def test_models_with_long_tokens_take_longer_sequences(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spot_checks, "SPOT_TOKENS", 5)
    changes = {"long_sequences": LongSequences(), "model": "DNABERT-S"}
    assert max(drawn(campaign, 1000, **changes).values()) > 5
    assert "sequences are short enough for the reference" in caplog.text


def test_each_row_may_be_drawn(campaign: Campaign) -> None:
    """Also with 3 of them at a time."""
    plan, rows = gathered(campaign), set[int]()
    with Part(campaign.master) as part:
        for overlap in range(100):
            long = LongSequences("window", 300, overlap)
            plan.fingerprint = replace(EVERYTHING, long_sequences=long)
            rows |= {*draw(part, plan, 3).tolist()}
    assert rows == {*range(len(LENGTHS))}


def test_the_shortest_is_drawn_too_for_its_pseudo_perplexity(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = ("entropy", "pseudo_perplexity")
    more = drawn(campaign, 1, scores=scores)
    assert min(more.values()) == min(LENGTHS.values())
    assert len(more) == 2 and len(drawn(campaign, 1, scores=scores[:1])) == 1
    assert drawn(campaign, 1000, scores=scores) == drawn(campaign, 1000)
    monkeypatch.setattr(REFERENCE, lambda *call, **_: reference(*call))
    words = "no pseudo-perplexity was compared"
    assert checked(campaign, 1, scores=scores[1:]).not_compared.startswith(words)
    assert not checked(campaign, 0, scores=scores[1:]).not_compared


def test_a_bucket_that_was_damaged_is_named(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    plan, sequences = gathered(campaign), campaign.sequences
    for bucket in (sequences / "buckets").iterdir():
        table = pq.read_table(bucket)
        others = pa.array(table["sequence"].to_pylist()[::-1])
        pq.write_table(table.set_column(1, "sequence", others), bucket)
    for message in ("changed since it was written", "is not the SHA-256 of its sequence"):
        validation = Validation(status="passed", checks=[])
        check_spots(validation, plan, campaign.master, campaign.weights, 3)
        assert message in validation.problems[0] and "/buckets/" in validation.problems[0]
        summary = sequences / "summary.json"
        assert validation.remedy == f"delete {summary} and run the campaign again"
        seal_sequences(sequences)


def test_a_row_with_too_many_tokens_for_the_reference_is_told(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = []

    def taking_none(
        _: Path, sequences: list[str], __: object, *, most_tokens: int, masked_tokens: int
    ) -> list[dict[str, np.ndarray]]:
        assert (most_tokens, masked_tokens) == (spot_checks.SPOT_MOST, spot_checks.SPOT_MASKED)
        keys.extend(map(key, sequences))
        return [{} for _ in sequences]

    monkeypatch.setattr(REFERENCE, taking_none)
    assert checked(campaign, 1).problems == []
    assert f"key {keys[0]} has too many tokens for the reference" in caplog.text


def test_a_row_beyond_the_bound_is_judged_by_the_rounding_of_its_own_sequence(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*call: Any, **_: int) -> list[dict[str, np.ndarray]]:
        return [{kind: 1.05 * v for kind, v in vectors.items()} for vectors in reference(*call)]

    monkeypatch.setattr(REFERENCE, moved)
    for rounding, refused in ((0.02, False), (0.001, True)):
        distances = dict.fromkeys(campaign.fingerprint.representations, rounding)
        path = "plm_embed.inference.reference.rounding_distances"
        monkeypatch.setattr(path, lambda *_, distances=distances: distances)
        assert bool(checked(campaign, 1).problems) == refused
