"""`plm_embed.open`: vectors by id, key and row, as they were stored; and a reader that is closed,
whose file is replaced, or that is asked with other types.
"""

import re
import shutil
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
from support.campaigns import (
    DIM,
    EVERYTHING,
    Campaign,
    gathered_campaign,
    vectors,
)
from support.expected_rows import CLEAR, KEYS, KEYS_OF_ID, RECORDS, SEQUENCES, UNCLEAR, expected


def test_vectors_by_id_in_the_order_asked_for(embeddings) -> None:
    ids = [CLEAR[5], CLEAR[0], CLEAR[5], CLEAR[9]]
    found = embeddings.get(ids)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected([next(iter(KEYS_OF_ID[id])) for id in ids]))
    other = embeddings.get(ids, name="max_l3")
    np.testing.assert_array_equal(
        other, expected([next(iter(KEYS_OF_ID[id])) for id in ids], "max_l3")
    )
    assert embeddings.get([]).shape == (0, DIM)
    np.testing.assert_array_equal(embeddings.get(id for id in ids), found)
    assert CLEAR[0] in embeddings and UNCLEAR[0] in embeddings and KEYS[0] not in embeddings
    assert "nobody" not in embeddings and "\udc80" not in embeddings and 3 not in embeddings
    assert embeddings.shape == (len(KEYS), DIM)


def test_ids_without_one_vector_are_named(embeddings) -> None:
    with pytest.raises(
        PlmEmbedError, match="no vector for nobody, nor; no record has the id 'nobody'"
    ) as caught:
        embeddings.get(["p0", "nobody", "nor"])
    assert isinstance(caught.value, KeyError)
    for asked in (
        f"{CLEAR[4]}.1",
        f">sp|{CLEAR[4]}|NAME some words",
        f" {CLEAR[4]}\n",
        CLEAR[4].upper(),
    ):
        with pytest.raises(PlmEmbedError, match=rf"; did you mean {CLEAR[4]}\?$"):
            embeddings.get([asked])
    with pytest.raises(PlmEmbedError, match="and 3 more"):
        embeddings.get([f"x{number}" for number in range(8)])
    with pytest.raises(
        PlmEmbedError, match=f"different sequences share the id {UNCLEAR[0]}; .* source and number"
    ):
        embeddings.get([UNCLEAR[0]])
    with pytest.raises(PlmEmbedError, match=r'ids are a list: get\(\["p1"\]\)'):
        embeddings.get("p1")
    assert len(embeddings.ids) == len(RECORDS)
    assert set(embeddings.ids) == set(KEYS_OF_ID)


def test_a_skipped_record_is_said_to_be_skipped_and_nothing_is_proposed(
    campaign: Campaign, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(campaign.master.parent, folder)
    for name in (campaign.index.name, "records.parquet"):
        table = pq.read_table(folder / name)
        reasons = (
            table["reason"].to_pylist() if "reason" in table.column_names else [None] * len(table)
        )
        called = [
            f"sp|Q{at:05d}|GONE" if reason else f"sp|{id.upper()}|HERE"
            for at, (id, reason) in enumerate(zip(table["id"].to_pylist(), reasons, strict=True))
        ]
        place = table.schema.get_field_index("id")
        pq.write_table(table.set_column(place, "id", pa.array(called)), folder / name)
    at = reasons.index("empty")
    with plm_embed.open(folder) as embeddings:
        for asked in (f"sp|Q{at:05d}|GONE", f"Q{at:05d}"):
            said = (
                rf"no vector for {re.escape(asked)}; .*\|GONE was skipped: empty \(no residues\)$"
            )
            with pytest.raises(PlmEmbedError, match=said):
                embeddings[asked]
        accession = CLEAR[4].upper()
        with pytest.raises(PlmEmbedError, match=rf"; did you mean sp\|{accession}\|HERE\?$"):
            embeddings[accession]


def test_vectors_by_key(embeddings) -> None:
    chosen = [KEYS[7], KEYS[0], KEYS[-1], KEYS[7]]
    np.testing.assert_array_equal(embeddings.by_key(chosen), expected(chosen))
    np.testing.assert_array_equal(
        embeddings.by_key(embeddings.keys[3:5], "mean_l3"), expected(KEYS[3:5], "mean_l3")
    )
    with pytest.raises(KeyError, match="no vector for ffff"):
        embeddings.by_key([KEYS[0], "f" * 64])
    for wrong in (
        KEYS[0] + "0",
        KEYS[0][:-1],
        "ü" * 64,
        "\udc80",
        KEYS[0].upper(),
        np.array([KEYS[0] + "0"], "S65"),
        7,
    ):
        with pytest.raises(PlmEmbedError, match="a key is the SHA-256 of a sequence: 64 digits"):
            embeddings.by_key([wrong] if not isinstance(wrong, np.ndarray) else wrong)
    with pytest.raises(PlmEmbedError, match="keys are a list"):
        embeddings.by_key(KEYS[0])
    assert [key.decode() for key in embeddings.keys] == KEYS
    assert embeddings.lengths.tolist() == [len(SEQUENCES[key]) for key in KEYS]


def test_rows_as_numpy_takes_them(embeddings) -> None:
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
    for rows in [*(slice(*each) for each in slices), *chosen]:
        np.testing.assert_array_equal(embeddings[rows], whole[rows])
    assert embeddings[[]].shape == (0, DIM)
    for rows in (58, -59, [58], np.array([-59]), [1.5], np.ones(57, bool)):
        with pytest.raises(IndexError):
            embeddings[rows]
    np.testing.assert_array_equal(embeddings.to_numpy(), whole)
    np.testing.assert_array_equal(embeddings.to_numpy("max_l2"), expected(KEYS, "max_l2"))


def test_batches_cover_every_row_once(embeddings) -> None:
    batches = list(embeddings.iter_batches(17, "mean_l3"))
    assert [len(keys) for keys, _ in batches] == [17, 17, 17, 7]
    np.testing.assert_array_equal(
        np.concatenate([found for _, found in batches]), expected(KEYS, "mean_l3")
    )
    assert [key.decode() for keys, _ in batches for key in keys] == KEYS
    for rows, said in ((-1, "not above 0"), (0, "not above 0"), (None, "not a whole number")):
        with pytest.raises(PlmEmbedError, match=f"rows: {rows} is {said}"):
            next(embeddings.iter_batches(rows))


def test_index_as_a_data_frame(embeddings) -> None:
    frame = embeddings.to_pandas()
    assert list(frame.columns) == [
        "id",
        "cache_key",
        "row",
        "length",
        "source",
        "number",
        "function",
    ]
    assert len(frame) == len(RECORDS)
    full = embeddings.to_pandas(vectors=True, name="mean_l3")
    np.testing.assert_array_equal(
        np.stack(full["mean_l3"].to_list()), expected(frame["cache_key"].to_list(), "mean_l3")
    )


def test_matrices_per_residue(embeddings) -> None:
    for id in CLEAR[:10]:
        (key,) = KEYS_OF_ID[id]
        wanted = vectors(SEQUENCES[key], EVERYTHING)
        np.testing.assert_array_equal(
            embeddings.per_residue(id), wanted["per_residue_l2"].astype(np.float16)
        )
        found = embeddings.per_residue(id, "per_residue_l3")
        np.testing.assert_array_equal(found, wanted["per_residue_l3"].astype(np.float16))
    with pytest.raises(PlmEmbedError, match=r"use per_residue\(id\)"):
        embeddings.get(CLEAR[:1], "per_residue_l2")
    with pytest.raises(PlmEmbedError, match=r"mean_l2 is none of per_residue_l2, per_res"):
        embeddings.per_residue(CLEAR[0], "mean_l2")


def test_representations_that_are_not_there_are_named(embeddings, tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no representation mean_l33; it has max_l2, max_l3"):
        embeddings.get(CLEAR[:1], "mean_l33")
    plain = gathered_campaign(tmp_path)
    with (
        plm_embed.open(plain.master) as other,
        pytest.raises(PlmEmbedError, match="no per-residue representation"),
    ):
        other.per_residue("p0")


def test_metadata_is_the_fingerprint_and_more(embeddings) -> None:
    assert embeddings.fingerprint == EVERYTHING
    assert embeddings.metadata["fingerprint"]["pooling"] == ["mean", "max", "per_residue"]
    assert embeddings.metadata["layers"] == [2, 3]
    assert embeddings.metadata["inputs"]["embedded"] == len(KEYS)
    assert embeddings.metadata["workflow_commit"] == "0123abc"


def test_tensors_and_annotated_data(embeddings) -> None:
    torch, anndata = pytest.importorskip("torch"), pytest.importorskip("anndata")
    assert torch.equal(embeddings.to_torch("max_l2"), torch.from_numpy(expected(KEYS, "max_l2")))
    found = embeddings.to_anndata()
    assert isinstance(found, anndata.AnnData) and found.shape == (len(RECORDS), DIM)
    assert found.obs["id"].tolist() == embeddings.ids
    columns = ["cache_key", "row", "length", "source", "number", "function", "id"]
    assert list(found.obs.columns) == columns
    np.testing.assert_array_equal(found.X, expected(found.obs["cache_key"].tolist()))


def test_keys_of_a_large_master_are_found_without_reading_them_all(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plm_embed.reading.open._MANY_ROWS", 10)
    with plm_embed.open(campaign.master) as embeddings:
        np.testing.assert_array_equal(embeddings.by_key(KEYS[::-1]), expected(KEYS[::-1]))
        for absent in ("0" * 64, "f" * 64):
            with pytest.raises(PlmEmbedError, match="no vector"):
                embeddings.by_key([KEYS[0], absent])
        assert "keys" not in vars(embeddings)


def test_rows_that_are_not_there_are_refused(embeddings) -> None:
    np.testing.assert_array_equal(embeddings.rows([-1, 0]), embeddings[[-1, 0]])
    for rows in (range(3, 9), range(58), range(4, 4), range(-2, 2), range(9, 3, -2)):
        np.testing.assert_array_equal(embeddings.rows(rows), embeddings.rows(list(rows)))
    for wrong in ([len(KEYS)], [0, -len(KEYS) - 1], range(50, 59)):
        with pytest.raises(IndexError, match="of 58"):
            embeddings.rows(wrong)
    with pytest.raises(IndexError):
        embeddings.matrix(len(KEYS), "per_residue_l2")
    with pytest.raises(PlmEmbedError, match=r"one vector per record: use rows\(\[0\]\)"):
        embeddings.matrix(0, "mean_l2")
    with pytest.raises(PlmEmbedError, match=r'ids are text: get\(\["1"\]\)'):
        embeddings.get([1])
    with pytest.raises(KeyError, match="no vector for a"):
        embeddings["a"]


def test_it_is_a_mapping_from_ids_too(embeddings: Embeddings) -> None:
    ids = list(embeddings)
    assert ids == embeddings.ids
    for id in CLEAR:
        assert id in ids
        assert np.array_equal(embeddings[id], embeddings.get(each for each in [id])[0])


def test_nothing_is_written_beside_a_master(campaign: Campaign, tmp_path: Path) -> None:
    for path in (campaign.master, campaign.index):
        shutil.copy(path, tmp_path)
    with plm_embed.open(tmp_path) as embeddings:
        embeddings[CLEAR[0]], embeddings.get(CLEAR), embeddings.nearest(CLEAR[:1])
    assert {path.name for path in tmp_path.iterdir()} == {campaign.master.name, campaign.index.name}


def first_vectors(vectors: Embeddings) -> np.ndarray:
    return vectors[:3]


def test_other_processes_open_the_file_anew(campaign: Campaign, embeddings) -> None:
    with plm_embed.open(campaign.store) as store, get_context("spawn").Pool(1) as pool:
        for vectors in (embeddings, store):
            np.testing.assert_array_equal(pool.apply(first_vectors, (vectors,)), expected(KEYS[:3]))


def test_a_closed_reader_says_that_it_is_closed(embeddings) -> None:
    embeddings.close()
    for call in (
        lambda: embeddings[0],
        lambda: embeddings[CLEAR[0]],
        lambda: CLEAR[0] in embeddings,
        lambda: embeddings.keys,
        lambda: embeddings.metadata,
        embeddings.to_numpy,
        embeddings.to_pandas,
        lambda: embeddings.nearest(vectors=np.ones(DIM)),
    ):
        with pytest.raises(
            PlmEmbedError, match=r"\.h5: was closed; open it again: plm_embed\.open"
        ):
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
    with pytest.raises(
        IndexError, match=r"rows are a list of whole numbers; for ids, get\(\[\.\.\.\]\)"
    ):
        embeddings[CLEAR[:2]]  # type: ignore[index]
    with plm_embed.open(campaign.store) as store:
        with pytest.raises(PlmEmbedError, match="has no representation 5; it has "):
            store.to_numpy(wrong)
        with pytest.raises(IndexError, match="rows are a list of whole numbers"):
            store.rows(wrong)


def test_weights_are_for_sequences_that_are_embedded(embeddings: Embeddings) -> None:
    with pytest.raises(PlmEmbedError, match=r"weights are for sequences .*; leave them out"):
        embeddings.nearest(embeddings.ids[:1], weights="resources/weights")


def test_a_path_below_the_home_folder(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(campaign.master.parent))
    with plm_embed.open(f"~/{campaign.master.name}") as embeddings:
        assert embeddings.path == campaign.master
