"""A master as what other libraries work with: arrays, data frames, AnnData."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.exports.export import export
from support.campaigns import DIM, EVERYTHING, MEAN, Campaign, gathered_campaign, with_column


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("frames"), fingerprint=EVERYTHING)


def test_a_column_is_not_replaced_by_vectors(campaign: Campaign, tmp_path: Path) -> None:
    with (
        plm_embed.open(with_column(campaign, tmp_path, "emb")) as embeddings,
        pytest.raises(ValueError, match="emb"),
    ):
        embeddings.to_pandas(vectors=True)


def test_no_dimension_of_a_text_is_called_like_a_column(campaign: Campaign, tmp_path: Path) -> None:
    master = with_column(campaign, tmp_path, "e0")
    with pytest.raises(PlmEmbedError, match="a column 'e0' of its own"):
        export(master, "csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_matrices_alone_are_no_pooled_vectors(tmp_path: Path) -> None:
    only = gathered_campaign(tmp_path, fingerprint=replace(MEAN, pooling=("per_residue",)))
    with plm_embed.open(only.master) as embeddings:
        for read in (embeddings.to_numpy, embeddings.to_torch, embeddings.to_anndata):
            with pytest.raises(PlmEmbedError, match="no pooled representation"):
                read()
        assert embeddings.to_numpy("per_residue_l3").shape[1] == DIM


def test_annotated_data_are_written_and_read_again(campaign: Campaign, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    with plm_embed.open(campaign.master) as embeddings:
        made, ids = embeddings.to_anndata(), embeddings.ids
        index = embeddings.to_pandas()
    assert len({*ids}) < len(ids)
    # the first of those that share an id keeps it
    firsts = [ids.index(id) == place for place, id in enumerate(ids)]
    assert [name == id for name, id in zip(made.obs_names, ids, strict=True)] == firsts
    made[:9].write_h5ad(tmp_path / "some.h5ad")
    made.write_h5ad(tmp_path / "x.h5ad")
    made.write_zarr(tmp_path / "x.zarr")
    for found in (anndata.read_h5ad(tmp_path / "x.h5ad"), anndata.read_zarr(tmp_path / "x.zarr")):
        assert found.obs_names.tolist() == made.obs_names.tolist() and found.obs_names.is_unique
        np.testing.assert_array_equal(found.X, made.X)
        for column in index.columns:
            assert found.obs[column].astype(object).fillna("none").tolist() == (
                index[column].astype(object).fillna("none").tolist()
            )
