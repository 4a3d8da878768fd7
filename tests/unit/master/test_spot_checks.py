"""Sequences that are drawn for the reference, and rows of a master against what it computed."""

import shutil
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.keys import key
from plm_embed.master import spot_checks
from plm_embed.master.campaign import read_campaign
from plm_embed.master.check import Findings
from plm_embed.master.spot_checks import Reference, Vectors, check_spots, draw
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.settings import ResiduePolicy, Table
from plm_embed.store.hdf5 import open_hdf5
from support.campaigns import EVERYTHING, MEAN, Campaign, gathered_campaign, reference
from support.made_up_sequences import make_records


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("sound"), fingerprint=EVERYTHING, buckets=4)


@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_other_sequences_are_drawn_each_time_only_for_another_fingerprint(
    campaign: Campaign, count: int
) -> None:
    drawn = draw(campaign.sequences, count, MEAN)
    assert len(drawn) == count
    assert all(key(sequence) == name for name, sequence in drawn.items())
    assert draw(campaign.sequences, count, MEAN) == drawn
    others = draw(campaign.sequences, count, replace(MEAN, layers=(2,)))
    assert (others != drawn) == (count > 0)


def test_all_are_drawn_where_fewer_are_asked_for_than_there_are(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = draw(campaign.sequences, 1000, MEAN)
    assert not caplog.text
    with open_hdf5(campaign.master) as file:
        assert {name.decode() for name in file["emb_keys"][:]} <= set(drawn)


@pytest.mark.parametrize(
    ("long", "most", "longest"),
    [
        (LongSequences(), 30, 30),
        (LongSequences("skip", 20), 30, 20),
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
    every = draw(campaign.sequences, 1000, replace(MEAN, long_sequences=long))
    lengths = [len(sequence) for sequence in every.values()]
    whole = (min(2 * most, longest) if long.policy != "whole" else longest) - 3
    assert whole <= max(lengths) <= longest


def test_the_reference_is_told_how_many_tokens_it_may_take(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def computing(
        weights: Path, sequences: list[str], fingerprint: Fingerprint, **more: object
    ) -> list[Vectors]:
        calls.extend([fingerprint, more])
        return reference(weights, sequences, fingerprint)

    monkeypatch.setattr("plm_embed.inference.reference.reference_vectors", computing)
    assert problems(campaign, None, 2) == ()
    assert calls == [
        campaign.fingerprint.of_reference,
        {"most_tokens": spot_checks.SPOT_MOST},
    ]
    assert spot_checks.SPOT_TOKENS == 2000 < spot_checks.SPOT_MOST


def test_models_with_long_tokens_take_longer_sequences(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_checks, "SPOT_TOKENS", 5)
    letters = {
        model: max(map(len, draw(campaign.sequences, 1000, replace(MEAN, model=model)).values()))
        for model in ("esm2_t3_untrained", "DNABERT-S")
    }
    assert letters["esm2_t3_untrained"] <= 5 < letters["DNABERT-S"]


@pytest.mark.parametrize("long", [0, 90])
def test_as_many_are_drawn_as_there_are_in_whatever_buckets(
    tmp_path: Path, long: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In 200 buckets, most of which hold nothing that is short enough."""
    random = np.random.default_rng(3)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    texts = ["".join(random.choice(letters, 2500 if at < long else 40)) for at in range(100)]
    fasta = tmp_path / "in.fasta"
    fasta.write_text("".join(f">p{at}\n{text}\n" for at, text in enumerate(texts)))
    how = {"table": Table(), "policy": ResiduePolicy(), "memory_mb": 1000}
    deduplicate([fasta], tmp_path / "sequences", buckets=200, **how)
    for count in (7, 16, 100):
        drawn = draw(tmp_path / "sequences", count, MEAN)
        assert len(drawn) == min(count, 100 - long)
        assert max(map(len, drawn.values())) == 40
        assert ("short enough" in caplog.text) == (count > 100 - long)
        caplog.clear()


def test_each_sequence_may_be_drawn(campaign: Campaign) -> None:
    """Also those of buckets that hold more than others, and with 3 of them at a time."""
    every = set(draw(campaign.sequences, 1000, MEAN))
    found: set[str] = set()
    for seed in range(200):
        found |= set(draw(campaign.sequences, 3, replace(MEAN, engine=str(seed))))
    assert found == every


def test_a_bucket_that_was_damaged_is_named(campaign: Campaign, tmp_path: Path) -> None:
    shutil.copytree(campaign.sequences, tmp_path / "sequences")
    buckets = list((tmp_path / "sequences" / "buckets").iterdir())
    for bucket in buckets:  # a sound table, but another file
        pq.write_table(pq.read_table(bucket), bucket, compression="gzip")
    with pytest.raises(
        StoreError,
        match=r"buckets/\d+\.parquet: changed since.*delete .*sequences/summary\.json and run",
    ):
        draw(tmp_path / "sequences", 3, MEAN)
    for bucket in buckets:
        bucket.write_bytes(bucket.read_bytes()[:-9])
    with pytest.raises(
        StoreError,
        match=r"buckets/\d+\.parquet: not a whole .*delete .*sequences/summary\.json and run",
    ):
        draw(tmp_path / "sequences", 3, MEAN)


def problems(
    campaign: Campaign, reference: Reference | None, count: int, skipped: Container[bytes] = ()
) -> tuple[str, ...]:
    findings = Findings()
    gathered = read_campaign(campaign.sequences, campaign.embedded, campaign.store)
    with open_hdf5(campaign.master) as file:
        check_spots(findings, file, gathered, skipped, campaign.weights, count, reference)
    return findings.checks["spot checks"].listed


@pytest.mark.parametrize(
    "other", [{"compute_dtype": "bfloat16"}, {"storage_dtype": "float32"}, {"engine": "2-triton"}]
)
def test_the_reference_stands_for_any_device_and_precision(other: dict[str, str]) -> None:
    assert replace(EVERYTHING, **other).of_reference == EVERYTHING.of_reference


def test_a_key_without_a_row_is_a_problem_unless_it_was_skipped(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path, out_of_memory=2)
    first, second = sorted({record["key"] for record in make_records() if record["key"]})[:2]
    assert set(problems(campaign, reference, 1000)) == {
        f"key {first} has no row in the master",
        f"key {second} has no row in the master",
    }
    assert problems(campaign, reference, 1000, (first.encode(), second.encode())) == ()


def test_a_row_with_too_many_tokens_for_the_reference_is_told(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    assert problems(campaign, lambda *_: [{}], 1) == ()
    (name,) = draw(campaign.sequences, 1, campaign.fingerprint.of_reference)
    assert f"key {name} has too many tokens for the reference" in caplog.text


def test_a_row_beyond_the_bound_is_judged_by_the_rounding_of_its_own_sequence(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(weights: Path, texts: list[str], fingerprint: Fingerprint) -> list[Vectors]:
        exact = reference(weights, texts, fingerprint)
        return [{kind: 1.05 * vector for kind, vector in vectors.items()} for vectors in exact]

    names = campaign.fingerprint.representations
    for rounding, refused in ((0.02, False), (0.001, True)):
        distances = dict.fromkeys(names, rounding)
        monkeypatch.setattr(
            "plm_embed.inference.reference.rounding_distances",
            lambda *_, distances=distances: distances,
        )
        assert bool(problems(campaign, moved, 1)) == refused
