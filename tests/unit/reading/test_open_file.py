"""The file of an open reader: closed, another one in its place, or named from the home folder."""

from pathlib import Path

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from support.campaigns import DIM, Campaign, gathered_campaign
from support.expected_rows import CLEAR, KEYS


def test_a_closed_reader_says_that_it_is_closed(embeddings) -> None:
    embeddings.close()
    for call in (
        lambda: embeddings[0],
        lambda: embeddings[CLEAR[0]],
        lambda: CLEAR[0] in embeddings,
        lambda: embeddings.keys,
        lambda: embeddings.fingerprint,
        lambda: embeddings.metadata,
        embeddings.to_numpy,
        embeddings.to_pandas,
        lambda: embeddings.nearest(vectors=np.ones(DIM)),
    ):
        with pytest.raises(
            PlmEmbedError, match=r"\.h5: was closed; open it again: plm_embed\.open"
        ):
            call()
    assert len(embeddings) == len(KEYS) and embeddings.ids


def test_a_reader_keeps_the_file_that_it_opened(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    before = campaign.master.read_bytes()
    with plm_embed.open(campaign.master) as reader:
        kept, some = reader.to_numpy(), reader.rows([3, 1])
        campaign.master.unlink()  # as a run that makes it anew puts another one in its place
        campaign.master.write_bytes(bytes(len(before)))
        np.testing.assert_array_equal(reader.to_numpy(), kept)
        np.testing.assert_array_equal(reader.rows([3, 1]), some)


def test_a_path_below_the_home_folder(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(campaign.master.parent))
    with plm_embed.open(f"~/{campaign.master.name}") as embeddings:
        assert embeddings.path == campaign.master
