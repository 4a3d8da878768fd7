"""A master that refers to the parts reads as one that holds the vectors."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from campaigns import EVERYTHING, MEAN, PROVENANCE, Campaign, make_campaign
from plm_embed import virtual
from plm_embed.compact import compact
from plm_embed.diff import compare
from plm_embed.errors import UserError
from plm_embed.gather import gather
from plm_embed.reader import Embeddings
from plm_embed.store import part_files
from test_compact import problems


def gather_virtually(campaign: Campaign) -> None:
    gather(campaign.sequences, campaign.embedded, campaign.store, *campaign.outputs, PROVENANCE, merge="virtual")


@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING, replace(EVERYTHING, storage_dtype="bfloat16")])
def test_it_reads_as_a_copy_does(tmp_path: Path, fingerprint, monkeypatch) -> None:
    copied = make_campaign(tmp_path / "copied", fingerprint=fingerprint)
    copied.gather()
    campaign = make_campaign(tmp_path / "virtual", fingerprint=fingerprint)
    gather_virtually(campaign)
    assert problems(campaign) == []
    moved = tmp_path / "moved"
    campaign.root.rename(moved)  # master and store together
    campaign = replace(campaign, root=moved)
    monkeypatch.chdir("/")
    assert compare(campaign.master, copied.master, 0).equal
    with Embeddings(campaign.master) as embeddings, Embeddings(copied.master) as expected:
        assert embeddings.metadata["merge"] == "virtual"
        rows = np.array([40, 3, 3, 17])
        np.testing.assert_array_equal(embeddings[rows], expected[rows])
    with h5py.File(campaign.master) as file:
        assert file["emb"].is_virtual
        assert file["emb"] == file["representations"][fingerprint.representations[0]]


def test_a_missing_part_reads_as_nan_and_is_found_by_validate(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    gather_virtually(campaign)
    next(campaign.parts.iterdir()).unlink()
    with h5py.File(campaign.master) as file:
        assert np.isnan(file["emb"][...]).any()
    assert problems(campaign)


def test_parts_that_interleave_too_often_are_refused_until_compacted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(virtual, "MAPPINGS", 10)
    campaign = make_campaign(tmp_path, parts=3)
    with pytest.raises(UserError, match="run `plm-embed compact`"):
        gather_virtually(campaign)
    assert not campaign.master.exists()
    compact(campaign.store, 10_000_000, 0)
    gather_virtually(campaign)
    assert problems(campaign) == []


def test_compacting_keeps_the_parts_that_it_refers_to(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path / "here", parts=3)
    gather_virtually(campaign)
    old = part_files(campaign.parts)
    with Embeddings(campaign.master) as embeddings:
        before = embeddings.to_numpy()
    done = compact(campaign.store, 10_000_000, 0)
    assert (done.merged, done.removed, done.kept) == (len(old), 0, {campaign.master.resolve(): len(old)})
    with Embeddings(campaign.master) as embeddings:
        np.testing.assert_array_equal(embeddings.to_numpy(), before)
    assert problems(campaign) == []
    # moved together, they still know of each other
    campaign.root.rename(tmp_path / "there")
    campaign = replace(campaign, root=tmp_path / "there")
    assert compact(campaign.store, 10_000_000, 0).removed == 0
    # gathered again, it refers to the large part
    gather_virtually(campaign)
    assert compact(campaign.store, 10_000_000, 0).removed == len(old)
    with Embeddings(campaign.master) as embeddings:
        np.testing.assert_array_equal(embeddings.to_numpy(), before)
    assert problems(campaign) == []
    # a copy, or none at all, refers to nothing
    again = make_campaign(tmp_path / "copied", parts=3)
    gather_virtually(again)
    again.gather()
    assert compact(again.store, 10_000_000, 0).removed == len(old)


def test_no_vectors_at_all(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, records=[])
    gather_virtually(campaign)
    with h5py.File(campaign.master) as file:
        assert file["emb"].shape == (0, 0)
