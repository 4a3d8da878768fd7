"""Checksums of rows: whoever reads a row of a damaged file is told, or gets what was written."""

import random
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.diff import compare
from plm_embed.reading.exports import export
from plm_embed.store import checksums
from support.campaigns import EVERYTHING, MEAN, gathered_campaign
from support.made_up_sequences import make_records


@given(rows=st.integers(1, 5), width=st.integers(1, 40), data=st.data())
def test_each_flipped_bit_shows(rows: int, width: int, data: st.DataObject) -> None:
    values = np.random.default_rng(rows * width).integers(0, 256, (rows, width), dtype=np.uint8)
    before = checksums.of_rows(values)
    row, at, bit = (data.draw(st.integers(0, most - 1)) for most in (rows, width, 8))
    values[row, at] ^= 1 << bit
    assert np.flatnonzero(checksums.of_rows(values) != before).tolist() == [row]
    counts = np.array([rows])
    whole = checksums.of_sequences(values, counts)
    values[row, at] ^= 1 << bit
    assert checksums.of_sequences(values, counts) != whole


def test_swapped_words_rows_and_zeros_show() -> None:
    values = np.arange(24, dtype="<u8").reshape(3, 8)
    assert checksums.of_rows(values[:, ::-1]).tolist() != checksums.of_rows(values).tolist()
    three = np.array([3])
    assert checksums.of_sequences(values[::-1], three) != checksums.of_sequences(values, three)
    assert checksums.of_rows(np.zeros((2, 8), "<u2")).all()
    assert checksums.of_rows(np.zeros((2, 0), "<u2")).shape == (2,)


def read_all(path: Path) -> dict[str, bytes]:
    """Everything that a reader of a master, or of a store, can be given."""
    with plm_embed.open(path) as vectors:
        found = {
            "keys": vectors.keys.tobytes(),
            "lengths": vectors.lengths.tobytes(),
            "fingerprint": vectors.fingerprint.to_json().encode(),
        }
        if path.suffix == ".h5":
            found["metadata"] = repr(sorted(vectors.metadata.items())).encode()
        for name in vectors.names:
            if name.startswith("per_residue"):
                matrices = [
                    vectors.per_residue_by_key(key.decode(), name).tobytes() for key in vectors.keys
                ]
                found[name] = b"".join(matrices)
            else:
                found[name] = vectors.to_numpy(name).tobytes()
                assert vectors.by_key(vectors.keys[::-1], name)[::-1].tobytes() == found[name]
        return found


@pytest.mark.parametrize("what", ["master", "store"])
def test_a_flipped_bit_is_named_or_changes_nothing_that_is_read(tmp_path: Path, what: str) -> None:
    kinds, records = replace(EVERYTHING, layers=(3,)), make_records(12)
    campaign = gathered_campaign(tmp_path, fingerprint=kinds, buckets=1, parts=1, records=records)
    path = campaign.master if what == "master" else campaign.store
    file = campaign.master if what == "master" else next(campaign.parts.iterdir())
    expected, whole = read_all(path), file.read_bytes()
    named = 0
    for seed in range(20):
        raw, where = bytearray(whole), random.Random(seed)
        # half of them among the structures of HDF5, most of which are at the beginning
        place = where.randrange(len(raw) if seed % 2 else min(6_000, len(raw)))
        raw[place] ^= 1 << where.randrange(8)
        file.write_bytes(raw)
        try:
            assert read_all(path) == expected, f"seed {seed}: byte {place}"
        except PlmEmbedError as error:
            assert file.name in str(error)
            named += 1
    assert named > 5


def test_a_changed_row_is_named_by_readers_exports_and_diff(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    with h5py.File(campaign.master, "r+") as file:
        file["emb"][5] += 1
    words = r"row 5 of \w+ has changed since it was written; delete "
    with plm_embed.open(campaign.master) as embeddings:
        embeddings[:5]
        for read in (lambda: embeddings[5], lambda: embeddings[[7, 5]], embeddings.to_numpy):
            with pytest.raises(PlmEmbedError, match=words):
                read()
    with pytest.raises(PlmEmbedError, match="row 5 of"):
        export(campaign.master, "npy", tmp_path / "x.npy")
    with pytest.raises(PlmEmbedError, match="row 5 of"):
        compare(campaign.master, campaign.master, 0)


def test_masters_without_checksums_are_still_read(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=MEAN)
    with h5py.File(campaign.master, "r+") as file:
        del file[checksums.GROUP]
        del file.attrs[checksums.SEAL]
        file["emb"][5] = 0
    with plm_embed.open(campaign.master) as embeddings:
        assert not embeddings[5].any()
