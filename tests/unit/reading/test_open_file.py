"""An open reader: closed, with another file in place of its own, asked with arguments of other
types; and how its file is named.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.master import Embeddings
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


def test_arguments_of_another_type_are_refused_in_words(
    campaign: Campaign, embeddings: Embeddings
) -> None:
    wrong: Any = 5
    for call, said in (
        (lambda: plm_embed.open(wrong), "path: 5 is not a path"),
        (lambda: plm_embed.open(b"x"), "path: b'x' is not a path"),  # type: ignore[arg-type]
        (lambda: plm_embed.open(""), "path: is empty; give a path"),
        (lambda: plm_embed.open("~nobody_has_this_name/x"), "path: ~nobody_has_this_name/x: "),
        (lambda: embeddings.get(wrong), r'ids are a list: get\(\["5"\]\)'),
        (lambda: embeddings.nearest(wrong), r'ids are text: get\(\["5"\]\)'),
        (lambda: embeddings.nearest(CLEAR[:1], k=True), "k: True is not a whole number"),
        (lambda: embeddings.by_key(wrong), r"keys are a list: by_key\(\[key\]\)"),
        (lambda: embeddings.to_numpy(wrong), "has no representation 5; it has "),
        (lambda: embeddings.to_anndata(wrong), "has no representation 5; it has "),
        (lambda: next(embeddings.iter_batches(True)), "rows: True is not a whole number"),
    ):
        with pytest.raises(PlmEmbedError, match=said):
            call()
    with pytest.raises(IndexError, match=r"rows are whole numbers; for ids, get\(\[\.\.\.\]\)"):
        embeddings[CLEAR[:2]]  # type: ignore[index]
    with plm_embed.open(campaign.store) as store:
        with pytest.raises(PlmEmbedError, match="has no representation 5; it has "):
            store.to_numpy(wrong)
        with pytest.raises(IndexError, match="rows are a list of numbers"):
            store.rows(wrong)


def test_weights_are_for_sequences_that_are_embedded(embeddings: Embeddings) -> None:
    with pytest.raises(PlmEmbedError, match=r"weights are for sequences .*; leave them out"):
        embeddings.nearest(embeddings.ids[:1], weights="resources/weights")


def test_a_path_below_the_home_folder(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(campaign.master.parent))
    with plm_embed.open(f"~/{campaign.master.name}") as embeddings:
        assert embeddings.path == campaign.master
