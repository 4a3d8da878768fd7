"""What the reference is asked for, the file of its answers, and what validate makes of them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.keys import key
from plm_embed.master import expected_vectors
from plm_embed.master.check_spots import check_spots
from plm_embed.master.expected_vectors import (
    Expected,
    draw,
    expect,
    read_expected,
    write_expected,
)
from plm_embed.master.findings import Findings
from plm_embed.store.hdf5 import open_hdf5
from support.campaigns import EVERYTHING, MEAN, Campaign, gathered_campaign, reference

AGAIN = "`snakemake --forcerun reference` makes it again"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("sound"), fingerprint=EVERYTHING, buckets=4)


def computed(campaign: Campaign, count: int = 5) -> Expected:
    fingerprint = campaign.fingerprint
    return expect(campaign.sequences, campaign.weights, fingerprint, count, reference)


def problems(
    campaign: Campaign, expected: Expected, skipped: set[bytes] | None = None
) -> list[str]:
    findings = Findings()
    with open_hdf5(campaign.master) as file:
        check_spots(findings, campaign.fingerprint, skipped or set(), file, expected)
    return findings.problems


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
    assert f"only {len(drawn)} sequences are short enough" in caplog.text
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
    monkeypatch.setattr(expected_vectors, "SPOT_TOKENS", most)
    monkeypatch.setattr(expected_vectors, "SPOT_PIECES", 2)
    every = draw(campaign.sequences, 1000, replace(MEAN, long_sequences=long))
    lengths = [len(sequence) for sequence in every.values()]
    whole = (min(2 * most, longest) if long.policy != "whole" else longest) - 3
    assert whole <= max(lengths) <= longest


def test_each_sequence_may_be_drawn(campaign: Campaign) -> None:
    """Also those of buckets that hold more than others, and with 3 of them at a time."""
    every = set(draw(campaign.sequences, 1000, MEAN))
    found: set[str] = set()
    for seed in range(400):
        found |= set(draw(campaign.sequences, 3, replace(MEAN, engine=str(seed))))
    assert found == every


def test_a_file_holds_what_was_computed(campaign: Campaign, tmp_path: Path) -> None:
    path = tmp_path / "reference.npz"
    expected = computed(campaign)
    too_long = replace(expected, vectors=expected.vectors | {key("MK"): {}})
    write_expected(path, too_long)
    found = read_expected(path)
    assert found.fingerprint == campaign.fingerprint.of_reference
    assert list(found.vectors) == list(too_long.vectors)
    for name, vectors in too_long.vectors.items():
        assert set(found.vectors[name]) == set(vectors)
        assert all(np.array_equal(found.vectors[name][one], vectors[one]) for one in vectors)
    assert problems(campaign, found, {key("MK").encode()}) == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def written(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "reference.npz"
    write_expected(path, computed(campaign, 2))
    return path


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_file_is_never_taken_for_another(written: Path, data: st.DataObject) -> None:
    content = written.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        damaged = content[:at]
    else:
        flipped = content[at] ^ data.draw(st.integers(1, 255))
        damaged = content[:at] + bytes([flipped]) + content[at + 1 :]
    path = written.with_name("damaged.npz")
    path.write_bytes(damaged)
    before = read_expected(written)
    try:
        found = read_expected(path)
    except StoreError as error:
        assert str(path) in str(error) and AGAIN in str(error)
        return
    assert found.fingerprint == before.fingerprint
    for name, vectors in before.vectors.items():
        for one, vector in vectors.items():
            assert np.array_equal(found.vectors[name][one], vector)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"reference\.npz: there is no such file; .*forcerun"):
        read_expected(tmp_path / "reference.npz")


OTHERS: dict[str, Callable[[Fingerprint], Fingerprint]] = {
    "weights_sha256": lambda found: replace(found, weights_sha256="0" * 64),
    "layers": lambda found: replace(found, layers=(3, 2)),
    "pooling": lambda found: replace(found, pooling=("mean",)),
    "long_sequences": lambda found: replace(found, long_sequences=LongSequences()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_reference_of_other_vectors_is_a_problem(campaign: Campaign, name: str) -> None:
    found = computed(campaign)
    others = replace(found, fingerprint=OTHERS[name](found.fingerprint))
    (problem,) = problems(campaign, others)
    assert problem.startswith(f"spot checks: the reference computed other vectors ({name}: ")
    assert problem.endswith(AGAIN)


@pytest.mark.parametrize(
    "other", [{"compute_dtype": "bfloat16"}, {"storage_dtype": "float32"}, {"engine": "2-triton"}]
)
def test_the_reference_stands_for_any_device_and_precision(
    campaign: Campaign, other: dict[str, str]
) -> None:
    assert replace(campaign.fingerprint, **other).of_reference == computed(campaign).fingerprint


def test_a_key_without_a_row_is_a_problem_unless_it_was_skipped(campaign: Campaign) -> None:
    found = computed(campaign)
    absent = key("NOWHERE")
    more = replace(found, vectors=found.vectors | {absent: next(iter(found.vectors.values()))})
    assert problems(campaign, more) == [
        f"spot checks: key {absent} has no row in the master; {AGAIN}"
    ]
    assert problems(campaign, more, {absent.encode()}) == []


def test_a_bucket_that_was_damaged_is_named(campaign: Campaign, tmp_path: Path) -> None:
    shutil.copytree(campaign.sequences, tmp_path / "sequences")
    for bucket in (tmp_path / "sequences" / "buckets").iterdir():
        bucket.write_bytes(bucket.read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"buckets/\d+\.parquet: changed since it was written"):
        draw(tmp_path / "sequences", 3, MEAN)
