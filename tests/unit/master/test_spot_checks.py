"""Sequences that are drawn for the reference, and rows of a master against what it computed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.keys import key
from plm_embed.master import spot_checks
from plm_embed.master.campaign import Campaign as Gathered
from plm_embed.master.campaign import read_campaign
from plm_embed.master.spot_checks import check_spots, draw
from plm_embed.master.validation_record import Validation
from plm_embed.store.parts import Part
from support.campaigns import EVERYTHING, Campaign, gathered_campaign, reference


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("sound"), fingerprint=EVERYTHING, buckets=4)


def gathered(campaign: Campaign, **changes: Any) -> Gathered:
    """Return the sum of its completion records, with a changed fingerprint."""
    plan = read_campaign(campaign.sequences, campaign.embedded, campaign.store)
    plan.fingerprint = replace(plan.fingerprint, **changes)
    return plan


def drawn(campaign: Campaign, count: int, **changes: Any) -> dict[int, str]:
    """The sequences of drawn rows."""
    plan = gathered(campaign, **changes)
    with Part(campaign.master) as part:
        rows = draw(part, plan, count)
        keys = part.keys[rows]
    pairs = list(spot_checks._sequences(plan, rows))
    assert [name.encode() for name, _ in pairs] == keys.tolist()
    assert all(key(sequence) == name for name, sequence in pairs)
    return dict(zip(rows.tolist(), (sequence for _, sequence in pairs), strict=True))


@pytest.mark.parametrize("count", [1, 7, 30])
def test_other_rows_are_drawn_only_for_another_fingerprint(campaign: Campaign, count: int) -> None:
    rows = drawn(campaign, count)
    assert len(rows) == count
    assert drawn(campaign, count) == rows != drawn(campaign, count, layers=(2,))


def test_all_are_drawn_where_fewer_are_asked_for_than_there_are(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    assert [*drawn(campaign, 1000)] == [*range(gathered(campaign).vectors)]
    assert not caplog.text


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
    lengths = [len(sequence) for sequence in drawn(campaign, 1000, long_sequences=long).values()]
    whole = (min(2 * most, longest) if long.policy != "whole" else longest) - 3
    assert whole <= max(lengths) <= longest


def test_the_reference_is_told_how_many_tokens_it_may_take(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def computing(
        weights: Path, sequences: list[str], fingerprint: Fingerprint, **more: object
    ) -> list[dict[str, np.ndarray]]:
        calls.extend([fingerprint, more])
        return reference(weights, sequences, fingerprint)

    monkeypatch.setattr("plm_embed.inference.reference.reference_vectors", computing)
    assert problems(campaign, 2) == []
    assert calls == [
        campaign.fingerprint.of_reference,
        {"most_tokens": spot_checks.SPOT_MOST, "masked_tokens": spot_checks.SPOT_MASKED},
    ]


def test_models_with_long_tokens_take_longer_sequences(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spot_checks, "SPOT_TOKENS", 5)
    whole = LongSequences()
    letters = {
        model: max(map(len, drawn(campaign, 1000, model=model, long_sequences=whole).values()))
        for model in ("esm2_t3_untrained", "DNABERT-S")
    }
    assert letters["esm2_t3_untrained"] <= 5 < letters["DNABERT-S"]
    assert "sequences are short enough for the reference" in caplog.text


def test_each_row_may_be_drawn(campaign: Campaign) -> None:
    """Also with 3 of them at a time."""
    seen: set[int] = set()
    for seed in range(100):
        seen |= set(drawn(campaign, 3, long_sequences=LongSequences("window", 40 + seed, 10)))
    assert seen == set(drawn(campaign, 1000))


def test_the_shortest_is_drawn_too_for_its_pseudo_perplexity(campaign: Campaign) -> None:
    every = drawn(campaign, 1000)
    scores = ("entropy", "pseudo_perplexity")
    with_it = drawn(campaign, 1, scores=scores)
    assert min(map(len, with_it.values())) == min(map(len, every.values()))
    assert len(with_it) == 2 and len(drawn(campaign, 1, scores=scores[:1])) == 1
    assert drawn(campaign, 1000, scores=scores) == every


def test_validate_says_where_no_pseudo_perplexity_is_compared(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plm_embed.inference.reference.reference_vectors", reference)
    plan = gathered(campaign, scores=("pseudo_perplexity",))
    for count, said in ((1, True), (0, False)):
        validation = Validation(status="passed", checks=[])
        check_spots(validation, plan, campaign.master, campaign.weights, count)
        assert validation.not_compared.startswith("no pseudo-perplexity was compared") == said


def test_a_bucket_that_was_damaged_is_named(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    plan = gathered(campaign)
    for bucket in (campaign.sequences / "buckets").iterdir():  # a sound table, but another file
        pq.write_table(pq.read_table(bucket), bucket, compression="gzip")
    with pytest.raises(
        StoreError,
        match=r"buckets/\d+\.parquet: changed since.*delete .*sequences/summary\.json and run",
    ):
        dict(spot_checks._sequences(plan, np.arange(3)))


def problems(campaign: Campaign, count: int) -> list[str]:
    validation = Validation(status="passed", checks=[])
    check_spots(validation, gathered(campaign), campaign.master, campaign.weights, count)
    return validation.problems


@pytest.mark.parametrize(
    "other", [{"compute_dtype": "bfloat16"}, {"storage_dtype": "float32"}, {"engine": "2-triton"}]
)
def test_the_reference_stands_for_any_device_and_precision(other: dict[str, str]) -> None:
    assert replace(EVERYTHING, **other).of_reference == EVERYTHING.of_reference


def test_a_row_with_too_many_tokens_for_the_reference_is_told(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plm_embed.inference.reference.reference_vectors", lambda *_, **__: [{}])
    assert problems(campaign, 1) == []
    (sequence,) = drawn(campaign, 1).values()
    assert f"key {key(sequence)} has too many tokens for the reference" in caplog.text


def test_a_row_beyond_the_bound_is_judged_by_the_rounding_of_its_own_sequence(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*call: Any, **_: int) -> list[dict[str, np.ndarray]]:
        return [{kind: 1.05 * v for kind, v in vectors.items()} for vectors in reference(*call)]

    path = "plm_embed.inference.reference"
    monkeypatch.setattr(f"{path}.reference_vectors", moved)
    for rounding, refused in ((0.02, False), (0.001, True)):
        distances = dict.fromkeys(campaign.fingerprint.representations, rounding)
        monkeypatch.setattr(f"{path}.rounding_distances", lambda *_, distances=distances: distances)
        assert bool(problems(campaign, 1)) == refused
