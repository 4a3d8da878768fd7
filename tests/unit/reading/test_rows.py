"""`plm_embed.open`: vectors by id, key and row, as they were stored; and a reader that is closed,
whose file is replaced, or that other processes use.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.open import Embeddings
from support.campaigns import DIM, EVERYTHING, Campaign, gathered_campaign, vectors
from support.expected_rows import CLEAR, KEYS, KEYS_OF_ID, RECORDS, SEQUENCES, UNCLEAR, expected


def test_vectors_by_id_in_the_order_asked_for(embeddings: Embeddings) -> None:
    ids = [CLEAR[5], CLEAR[0], CLEAR[5], CLEAR[9]]
    keys = [next(iter(KEYS_OF_ID[id])) for id in ids]
    stored = embeddings.get(ids)
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(stored, expected(keys))
    np.testing.assert_array_equal(embeddings.get(ids, name="max_l3"), expected(keys, "max_l3"))
    np.testing.assert_array_equal(embeddings.get(id for id in ids), stored)
    np.testing.assert_array_equal(embeddings[ids[1]], stored[1])
    assert embeddings.get([]).shape == (0, DIM)
    assert CLEAR[0] in embeddings and UNCLEAR[0] in embeddings and KEYS[0] not in embeddings
    assert "nobody" not in embeddings and "\udc80" not in embeddings and 3 not in embeddings
    assert embeddings.shape == (len(KEYS), DIM)
    assert list(embeddings) == embeddings.ids and set(embeddings.ids) == set(KEYS_OF_ID)
    assert len(embeddings.ids) == len(RECORDS)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["p0", "nobody", "nor"], "no vector for nobody, nor; records.parquet says what became"),
        ([f"{CLEAR[4]}.1"], rf"; did you mean {CLEAR[4]}\?$"),
        ([f">sp|{CLEAR[4]}|NAME some words"], rf"; did you mean {CLEAR[4]}\?$"),
        ([f" {CLEAR[4]}\n"], rf"; did you mean {CLEAR[4]}\?$"),
        ([CLEAR[4].upper()], rf"; did you mean {CLEAR[4]}\?$"),
        ([f"x{number}" for number in range(8)], "and 3 more"),
        (["\udc80(", CLEAR[0]], r"no vector for \udc80\("),
        ([1], "no vector for 1"),
        ("p1", r'ids are a list: get\(\["p1"\]\)'),
        ([UNCLEAR[0]], f"sequences share the id {UNCLEAR[0]}; .* by row or key"),
        ([UNCLEAR[0]] * 2, f"share the id {UNCLEAR[0]};"),
    ],
)
def test_ids_without_one_vector_are_named(embeddings: Embeddings, ids: Any, message: str) -> None:
    with pytest.raises(PlmEmbedError, match=message) as caught:
        embeddings.get(ids)
    assert isinstance(caught.value, KeyError) == ("no vector" in str(caught.value))


def test_a_skipped_record_is_said_to_be_skipped_and_nothing_is_proposed(
    campaign: Campaign, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(campaign.master.parent, tmp_path / "model"))
    for name in (campaign.index.name, "records.parquet"):
        table = pq.read_table(folder / name)
        lines = table.to_pylist()
        ids = [
            f"sp|Q{at:05d}|GONE" if line.get("reason") else f"sp|{line['id'].upper()}|HERE"
            for at, line in enumerate(lines)
        ]
        place = table.schema.get_field_index("id")
        pq.write_table(table.set_column(place, "id", pa.array(ids)), folder / name)
    (gone, *_) = (f"Q{at:05d}" for at, line in enumerate(lines) if line["reason"] == "empty")
    with plm_embed.open(folder) as embeddings:
        for id in (f"sp|{gone}|GONE", gone):
            message = rf"for {re.escape(id)}; .*\|GONE was skipped: empty \(no residues\)$"
            with pytest.raises(PlmEmbedError, match=message):
                embeddings[id]
        accession = CLEAR[4].upper()
        with pytest.raises(PlmEmbedError, match=rf"; did you mean sp\|{accession}\|HERE\?$"):
            embeddings[accession]


@pytest.mark.parametrize("many_rows", [10, 1 << 24])
def test_vectors_by_key(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, many_rows: int
) -> None:
    monkeypatch.setattr("plm_embed.reading.open._MANY_ROWS", many_rows)
    with plm_embed.open(campaign.master) as embeddings:
        chosen = [KEYS[7], KEYS[0], KEYS[-1], KEYS[7]]
        np.testing.assert_array_equal(embeddings.by_key(chosen), expected(chosen))
        for absent in ("0" * 64, "f" * 64):
            with pytest.raises(KeyError, match=f"no vector for {absent}"):
                embeddings.by_key([KEYS[0], absent])
        for wrong in (KEYS[0] + "0", KEYS[0][:-1], "ü" * 64, "\udc80", KEYS[0].upper(), 7):
            with pytest.raises(PlmEmbedError, match="a key is the SHA-256 of a sequence: 64"):
                embeddings.by_key([wrong])  # type: ignore[list-item]
        # of a large master, not all keys are read to find a few
        assert ("keys" in vars(embeddings)) == (many_rows > 10)
        some = embeddings.by_key(embeddings.keys[3:5], "mean_l3")
        np.testing.assert_array_equal(some, expected(KEYS[3:5], "mean_l3"))
        assert [key.decode() for key in embeddings.keys] == KEYS
        assert embeddings.lengths.tolist() == [len(SEQUENCES[key]) for key in KEYS]


def test_rows_as_numpy_takes_them(embeddings: Embeddings) -> None:
    whole = expected(KEYS)
    slices = [(10, 20), (None, None), (50, 99), (20, 10), (None, None, 7), (30, 10, -3), (-3, None)]
    chosen = [
        3,
        -1,
        np.int64(4),
        [5, 1, 1],
        np.array([-1, 0]),
        np.arange(58) % 3 == 0,
        np.zeros(0, int),
    ]
    for rows in [*(slice(*edges) for edges in slices), *chosen]:
        np.testing.assert_array_equal(embeddings[rows], whole[rows])
    for wrong in (58, -59, [58], np.array([-59]), [1.5], np.ones(57, bool), CLEAR[:2]):
        with pytest.raises(IndexError):
            embeddings[wrong]  # type: ignore[index]
    with pytest.raises(IndexError):
        embeddings.matrix(len(KEYS), "per_residue_l2")
    np.testing.assert_array_equal(embeddings.to_numpy(), whole)
    np.testing.assert_array_equal(embeddings.rows(range(9, 3, -2)), whole[[9, 7, 5]])
    np.testing.assert_array_equal(embeddings.to_torch("max_l2").numpy(), expected(KEYS, "max_l2"))


def test_batches_cover_every_row_once(campaign: Campaign) -> None:
    for path in (campaign.master, campaign.store):
        with plm_embed.open(path) as embeddings:
            batches = list(embeddings.iter_batches(17, "mean_l3"))
            assert [len(keys) for keys, _ in batches] == [17, 17, 17, 7]
            np.testing.assert_array_equal(
                np.concatenate([block for _, block in batches]), expected(KEYS, "mean_l3")
            )
            assert [key.decode() for keys, _ in batches for key in keys] == KEYS
            for rows in (-1, 0, None, True):
                with pytest.raises(PlmEmbedError, match=f"rows: {rows} is not "):
                    next(embeddings.iter_batches(rows))  # type: ignore[arg-type]


def test_the_index_as_a_data_frame_and_as_annotated_data(embeddings: Embeddings) -> None:
    frame = embeddings.to_pandas()
    columns = ["cache_key", "row", "length", "source", "number", "function"]
    assert list(frame.columns) == ["id", *columns] and len(frame) == len(RECORDS)
    data = embeddings.to_anndata()
    assert data.obs["id"].tolist() == embeddings.ids and list(data.obs) == [*columns, "id"]
    np.testing.assert_array_equal(data.X, expected(data.obs["cache_key"].tolist()))
    assert embeddings.fingerprint == EVERYTHING
    assert embeddings.metadata["fingerprint"]["pooling"] == ["mean", "max", "per_residue"]
    assert embeddings.metadata["inputs"]["embedded"] == len(KEYS)
    assert embeddings.metadata["workflow_commit"] == "0123abc"


def test_matrices_per_residue_of_the_layer_that_was_asked_for_first(
    embeddings: Embeddings, tmp_path: Path
) -> None:
    turned = replace(EVERYTHING, layers=(3, 2), pooling=("per_residue",))
    campaign = gathered_campaign(tmp_path, fingerprint=turned)
    with plm_embed.open(campaign.master) as other:
        for id in CLEAR[:10]:
            matrices = vectors(SEQUENCES[next(iter(KEYS_OF_ID[id]))], EVERYTHING)
            for reader, first in ((embeddings, "per_residue_l2"), (other, "per_residue_l3")):
                for name in ("per_residue_l2", "per_residue_l3"):
                    matrix = reader.per_residue(id, None if name == first else name)
                    np.testing.assert_array_equal(matrix, matrices[name].astype(np.float16))


def test_representations_that_are_absent_or_of_another_kind(
    campaign: Campaign, embeddings: Embeddings, tmp_path: Path
) -> None:
    id, plain = CLEAR[:1], gathered_campaign(tmp_path)
    with plm_embed.open(campaign.store) as store, plm_embed.open(plain.master) as without:
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: embeddings.get(id, "per_residue_l2"), r"use per_residue\(id\)"),
            (lambda: embeddings.per_residue(id[0], "mean_l2"), "mean_l2 has one vector per record"),
            (lambda: embeddings.get(id, "mean_l33"), "no representation mean_l33; it has max_l2,"),
            (lambda: without.per_residue(id[0]), "no representation per_residue; it has mean_l3"),
            (lambda: store.to_numpy("5"), "has no representation 5; it has "),
            (lambda: embeddings.scores("entropy"), r"no score entropy; .* `embedding\.scores: "),
        ]
        for call, message in calls:
            with pytest.raises(PlmEmbedError, match=message):
                call()


def test_nothing_is_written_beside_a_master(campaign: Campaign, tmp_path: Path) -> None:
    for path in (campaign.master, campaign.index):
        shutil.copy(path, tmp_path)
    with plm_embed.open(tmp_path) as embeddings:
        embeddings[CLEAR[0]], embeddings.get(CLEAR), embeddings.nearest(CLEAR[:1])
    assert {path.name for path in tmp_path.iterdir()} == {campaign.master.name, campaign.index.name}


def first_vectors(vectors: Embeddings) -> np.ndarray:
    return vectors[:3]


def test_other_processes_open_the_file_anew(campaign: Campaign, embeddings: Embeddings) -> None:
    with plm_embed.open(campaign.store) as store, get_context("spawn").Pool(1) as pool:
        for vectors in (embeddings, store):
            np.testing.assert_array_equal(pool.apply(first_vectors, (vectors,)), expected(KEYS[:3]))


def test_a_closed_reader_says_that_it_is_closed(embeddings: Embeddings) -> None:
    embeddings.close()
    for call in (
        lambda: embeddings[0],
        lambda: embeddings[CLEAR[0]],
        lambda: CLEAR[0] in embeddings,
        lambda: embeddings.keys,
        lambda: embeddings.metadata,
        embeddings.to_pandas,
        lambda: embeddings.nearest(vectors=np.ones(DIM)),
    ):
        with pytest.raises(PlmEmbedError, match=r"\.h5: was closed; open it again: plm_embed"):
            call()
    assert len(embeddings) == len(KEYS)


def test_a_reader_keeps_the_file_that_it_opened(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    before = campaign.master.read_bytes()
    with plm_embed.open(campaign.master) as reader:
        kept, some = reader.to_numpy(), reader.rows([3, 1])
        campaign.master.unlink()  # as a run that makes it anew puts another one in its place
        campaign.master.write_bytes(bytes(len(before)))
        np.testing.assert_array_equal(reader.to_numpy(), kept)
        np.testing.assert_array_equal(reader.rows([3, 1]), some)
