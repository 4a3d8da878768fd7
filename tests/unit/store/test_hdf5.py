"""HDF5 files from elsewhere: what they hold is read, what they point at is not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.diff import compare
from plm_embed.store.hdf5 import open_hdf5
from support.campaigns import MEAN, Campaign, gathered_campaign

NAME = "representations/mean_l3"


def external_storage(file: h5py.File, secret: Path) -> None:
    file.create_dataset(NAME, (58, 16), "f2", external=[(str(secret), 0, 58 * 16 * 2)])


def external_link(file: h5py.File, secret: Path) -> None:
    file[NAME] = h5py.ExternalLink(str(secret), "/emb")


def soft_link(file: h5py.File, secret: Path) -> None:
    file["out"] = h5py.ExternalLink(str(secret), "/")
    file[NAME] = h5py.SoftLink("/out/emb")


def dangling_link(file: h5py.File, _: Path) -> None:
    file[NAME] = h5py.SoftLink("/nowhere")


def virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((58, 16), "f2")
    layout[:] = h5py.VirtualSource(str(secret), "emb", (58, 16))
    file.create_virtual_dataset(NAME, layout)


def group(file: h5py.File, _: Path) -> None:
    file.create_group(NAME)


def one_dimension(file: h5py.File, _: Path) -> None:
    file[NAME] = np.zeros(58, "f2")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("campaign"), fingerprint=MEAN)


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (external_storage, "the data of mean_l3 lie in other files"),
        (external_link, "mean_l3 is a link to another place"),
        (soft_link, "mean_l3 is a link to another place"),
        (dangling_link, "mean_l3 is a link to another place"),
        (virtual, "the data of mean_l3 lie in other files"),
        (group, "mean_l3 is a group, which does not belong there"),
        (one_dimension, r"mean_l3 has shape \(58,\), expected 2 dimensions"),
    ],
)
def test_data_outside_the_file_and_odd_structures_are_refused_by_everyone(
    tmp_path: Path, campaign: Campaign, put: Callable[[h5py.File, Path], None], words: str
) -> None:
    master = tmp_path / "master_esm2_embeddings.h5"
    shutil.copy(campaign.master, master)
    with h5py.File(master, "r+") as file:
        del file[NAME], file["emb"]
        put(file, campaign.master)
    for read in (plm_embed.open, lambda path: compare(campaign.master, path, 0)):
        with pytest.raises(PlmEmbedError, match=words) as refused:
            read(master)
        assert str(master) in str(refused.value)


def test_a_link_is_not_followed_to_find_out_what_it_is(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["emb_keys"] = h5py.ExternalLink("/dev/zero", "/x")  # opening it would never end
    with (
        pytest.raises(PlmEmbedError, match="emb_keys is a link to another place"),
        open_hdf5(tmp_path / "x.h5"),
    ):
        pass
