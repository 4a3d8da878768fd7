"""HDF5 files from elsewhere: what they hold is read, what they point at is not."""

import shutil
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


def put(file: h5py.File, what: object, other: Path) -> None:
    """Let the dataset be a link, lie in another file, or be none."""
    if what == "external storage":
        file.create_dataset(NAME, (58, 16), "f2", external=[(str(other), 0, 58 * 16 * 2)])
    elif what == "virtual":
        layout = h5py.VirtualLayout((58, 16), "f2")
        layout[:] = h5py.VirtualSource(str(other), "emb", (58, 16))
        file.create_virtual_dataset(NAME, layout)
    elif what == "group":
        file.create_group(NAME)
    elif what == "one dimension":
        file[NAME] = np.zeros(58, "f2")
    else:
        file["out"] = h5py.ExternalLink(str(other), "/")
        file[NAME] = h5py.ExternalLink(str(other), "/emb") if what == "external link" else what


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("campaign"), fingerprint=MEAN)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("external storage", "the data of mean_l3 lie in other files"),
        ("virtual", "the data of mean_l3 lie in other files"),
        ("external link", "mean_l3 is a link to another place"),
        (h5py.SoftLink("/out/emb"), "mean_l3 is a link to another place"),
        (h5py.SoftLink("/nowhere"), "mean_l3 is a link to another place"),
        ("group", "mean_l3 is a group, which does not belong there"),
        ("one dimension", r"mean_l3 has shape \(58,\), expected 2 dimensions"),
    ],
)
def test_data_outside_the_file_and_odd_structures_are_refused_by_everyone(
    tmp_path: Path, campaign: Campaign, what: object, words: str
) -> None:
    master = Path(shutil.copy(campaign.master, tmp_path))
    with h5py.File(master, "r+") as file:
        del file[NAME], file["emb"]
        put(file, what, campaign.master)
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
