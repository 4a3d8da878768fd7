"""The size of per-residue output, and the limit that a user agrees to."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.settings import Settings
from plm_embed.jobs.per_residue import check_per_residue, per_residue_bytes
from plm_embed.models.registry import MODELS
from plm_embed.sequences.summary import read_summary
from plm_embed.store.hdf5 import open_hdf5
from support.campaigns import DIM, EVERYTHING, Campaign, gathered_campaign, seal_sequences

ESM2 = MODELS["esm2_t33_650M_UR50D"].family
SETTINGS = Settings(
    layers=(2, 3),
    pooling=("mean", "max", "per_residue"),
    long_sequences=LongSequences("window", 40, 10),
)


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    campaign = gathered_campaign(tmp_path, fingerprint=EVERYTHING)
    with open_hdf5(campaign.master) as master:
        values = master["length"][...].tolist()
    seal_sequences(campaign.sequences, lengths=Counter(values))
    return campaign


def test_the_size_is_that_of_the_master(campaign: Campaign) -> None:
    lengths = read_summary(campaign.sequences).lengths
    with open_hdf5(campaign.master) as master:
        datasets = [master["representations"][f"per_residue_l{layer}"] for layer in (2, 3)]
        written = sum(dataset.size * 2 for dataset in datasets)
    assert per_residue_bytes(SETTINGS, DIM, ESM2, lengths) == written


@pytest.mark.parametrize(
    ("long", "residues"),
    [
        (LongSequences(), 330),
        (LongSequences("window", 50, 9), 330),
        (LongSequences("crop", 50), 180),
        (LongSequences("skip", 50), 30),
        (LongSequences("crop", 100), 330),
    ],
)
def test_the_policy_for_long_sequences_counts(long: LongSequences, residues: int) -> None:
    settings = Settings(
        layers=(6,), pooling=("per_residue",), storage_dtype="float32", long_sequences=long
    )
    assert per_residue_bytes(settings, 320, ESM2, {10: 3, 100: 3}) == residues * 320 * 4


def test_more_than_was_agreed_to_stops_with_one_line(
    campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = campaign.sequences / "buckets" / "0000.parquet"
    caplog.set_level("INFO")
    check_per_residue(bucket, campaign.weights, SETTINGS)
    assert "per-residue output: 0.000" in caplog.text
    with pytest.raises(
        PlmEmbedError, match="To agree, write `per_residue_limit_gb: 1` below `embedding:`"
    ) as error:
        check_per_residue(bucket, campaign.weights, replace(SETTINGS, per_residue_limit_gb=0))
    assert "\n" not in str(error.value)
    check_per_residue(bucket, campaign.weights, Settings(per_residue_limit_gb=0))
    check_per_residue(
        campaign.root / "by" / "hand" / "bucket.parquet",
        campaign.weights,
        replace(SETTINGS, per_residue_limit_gb=0),
    )
