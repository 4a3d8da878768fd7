"""`plm_embed.open`: vectors by id, key and row, as they were stored."""

import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.exports.export import export
from plm_embed.reading.vectors import Vectors
from plm_embed.store.hdf5 import connect, create_column, create_vectors, write_bits
from plm_embed.store.replaced import part_names
from support.campaigns import DIM, EVERYTHING, MEAN, Campaign, make_campaign, make_records, vectors
from support.damages import put, swap

RECORDS = [record for record in make_records() if record["key"]]
SEQUENCES = {record["key"]: record["sequence"] for record in RECORDS}
KEYS = sorted(SEQUENCES)
KEYS_OF_ID: dict[str, set[str]] = defaultdict(set)
for _record in RECORDS:
    KEYS_OF_ID[_record["id"]].add(_record["key"])
CLEAR = sorted(id for id, keys in KEYS_OF_ID.items() if len(keys) == 1)
UNCLEAR = sorted(id for id, keys in KEYS_OF_ID.items() if len(keys) > 1)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    campaign = make_campaign(tmp_path_factory.mktemp("reader"), fingerprint=EVERYTHING)
    campaign.gather()
    return campaign


@pytest.fixture
def embeddings(campaign: Campaign):
    with plm_embed.open(campaign.master) as embeddings:
        yield embeddings


def expected(keys: list[str], name: str = "mean_l2") -> np.ndarray:
    return np.stack([vectors(SEQUENCES[key], EVERYTHING)[name].astype(np.float16) for key in keys])


def test_opens_a_master_its_index_or_their_folder(campaign: Campaign) -> None:
    for path in (campaign.master, campaign.index, campaign.master.parent, str(campaign.master)):
        with plm_embed.open(path) as embeddings:
            assert (len(embeddings), embeddings.dim) == (len(KEYS), DIM)
    with plm_embed.open(campaign.master) as embeddings:
        assert repr(embeddings).endswith(
            "58 x 16, max_l2, max_l3, mean_l2, mean_l3, per_residue_l2, per_residue_l3>"
        )


def test_the_one_master_of_a_results_folder_is_found(campaign: Campaign, tmp_path: Path) -> None:
    with plm_embed.open(campaign.results) as embeddings:
        assert embeddings.path == campaign.master
    for model in ("one", "two"):
        shutil.copytree(campaign.master.parent, tmp_path / model)
    with pytest.raises(
        PlmEmbedError, match=r"holds 2 masters; name one of them: .*/one/master_.*, .*/two/master_"
    ):
        plm_embed.open(tmp_path)
    with pytest.raises(PlmEmbedError, match="no such file; give a master"):
        plm_embed.open(tmp_path.parent / "absent")


def test_a_master_is_found_whatever_its_family(campaign: Campaign, tmp_path: Path) -> None:
    for suffix in (".h5", ".parquet"):
        shutil.copy(
            campaign.master.with_suffix(suffix), tmp_path / f"master_esm1b_embeddings{suffix}"
        )
    with plm_embed.open(tmp_path) as embeddings:
        assert embeddings.path == tmp_path / "master_esm1b_embeddings.h5"
    shutil.copy(campaign.master, tmp_path)
    with pytest.raises(
        PlmEmbedError,
        match=r"holds 2 masters; name one of them: .*/master_esm1b_.*, .*/master_esm2_",
    ):
        plm_embed.open(tmp_path)


def test_what_cannot_be_opened_is_said(campaign: Campaign, tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no such file"):
        plm_embed.open(tmp_path)
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(PlmEmbedError, match="not a whole HDF5 file"):
        plm_embed.open(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(PlmEmbedError, match="no master of embeddings"):
        plm_embed.open(tmp_path / "other.h5")
    (tmp_path / campaign.master.name).write_bytes(campaign.master.read_bytes())
    with (
        plm_embed.open(tmp_path) as embeddings,
        pytest.raises(PlmEmbedError, match=r"\.parquet: there is no such file"),
    ):
        embeddings.get(["p1"])


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
        PlmEmbedError, match=r"no vector for nobody, nor; records\.parquet says"
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
        with pytest.raises(PlmEmbedError, match="a key is the SHA-256 of a sequence, 64 digits"):
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
    with pytest.raises(PlmEmbedError, match=r"mean_l2 has one vector per record: use get"):
        embeddings.per_residue(CLEAR[0], "mean_l2")


def test_representations_that_are_not_there_are_named(embeddings, tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no representation mean_l33; it has max_l2, max_l3"):
        embeddings.get(CLEAR[:1], "mean_l33")
    plain = make_campaign(tmp_path)
    plain.gather()
    with (
        plm_embed.open(plain.master) as other,
        pytest.raises(PlmEmbedError, match="no per-residue representation"),
    ):
        other.per_residue("p0")


def test_an_empty_master_and_bfloat16(tmp_path: Path) -> None:
    empty = make_campaign(tmp_path / "empty", records=[])
    empty.gather()
    with plm_embed.open(empty.master) as embeddings:
        assert len(embeddings) == 0
        assert embeddings[:].shape == (0, 0)
        assert list(embeddings.iter_batches()) == []
        with pytest.raises(PlmEmbedError, match="no vector"):
            embeddings.by_key(["f" * 64])
    half = make_campaign(tmp_path / "half", fingerprint=replace(MEAN, storage_dtype="bfloat16"))
    half.gather()
    with (
        h5py.File(half.master) as file,
        plm_embed.open(half.master) as embeddings,
    ):  # in a notebook both are open
        assert embeddings[:].dtype == np.float32
        np.testing.assert_array_equal(embeddings[:], file["emb"][...])


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
    assert found.obs_names.tolist() == embeddings.ids
    assert list(found.obs.columns) == ["cache_key", "row", "length", "source", "number", "function"]
    np.testing.assert_array_equal(found.X, expected(found.obs["cache_key"].tolist()))


def test_a_store_is_read_by_key(campaign: Campaign, embeddings) -> None:
    for path in (campaign.store, campaign.store / EVERYTHING.id):
        with plm_embed.open(path) as store:
            assert (len(store), store.dim, store.names) == (
                len(KEYS),
                DIM,
                list(EVERYTHING.representations),
            )
            assert [key.decode() for key in store.keys] == KEYS and store.fingerprint == EVERYTHING
            assert store.lengths.tolist() == [len(SEQUENCES[key]) for key in KEYS]
            for name in ("emb", "mean_l3", "max_l2"):
                np.testing.assert_array_equal(store.to_numpy(name), embeddings.to_numpy(name))
            chosen = [KEYS[9], KEYS[1], KEYS[9]]
            np.testing.assert_array_equal(store.by_key(chosen), expected(chosen))
            np.testing.assert_array_equal(store[5], embeddings[5])
            np.testing.assert_array_equal(store[10:40:3], embeddings[10:40:3])
            assert store[[]].shape == store.by_key([]).shape == (0, DIM)
            batches = list(store.iter_batches(17, "mean_l3"))
            np.testing.assert_array_equal(
                np.concatenate([each for _, each in batches]), expected(KEYS, "mean_l3")
            )
            wanted = vectors(SEQUENCES[KEYS[3]], EVERYTHING)["per_residue_l2"].astype(np.float16)
            np.testing.assert_array_equal(store.per_residue_by_key(KEYS[3]), wanted)
            np.testing.assert_array_equal(embeddings.per_residue_by_key(KEYS[3]), wanted)
            with pytest.raises(PlmEmbedError, match="a store has keys, no ids: use by_key"):
                store.get(["p1"])
            with pytest.raises(KeyError, match="no vector for ffff"):
                store.by_key(["f" * 64])
            assert (
                KEYS[3] in store and "f" * 64 not in store and "p1" not in store and 3 not in store
            )
            assert store.to_anndata().obs_names.tolist() == KEYS


def test_a_store_into_which_a_part_is_being_copied_is_read_without_it(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, parts=1)
    whole = sorted(campaign.parts.iterdir())
    (campaign.parts / f".tmp-0123-{whole[0].name}").write_bytes(whole[0].read_bytes()[:1000])
    (campaign.parts / f"{whole[0].name}.damaged").write_bytes(b"set aside")
    with plm_embed.open(campaign.store) as store:
        assert len(store) == len(KEYS)
    assert part_names(campaign.parts) == [path.name for path in whole]
    assert part_names(tmp_path / "absent") == []


def test_a_folder_of_several_stores_is_refused(tmp_path: Path) -> None:
    for fingerprint in (MEAN, EVERYTHING):
        make_campaign(tmp_path, fingerprint=fingerprint)
    with pytest.raises(PlmEmbedError, match="2 stores of different settings; open one of them"):
        plm_embed.open(tmp_path / "store")
    empty = make_campaign(tmp_path / "empty", records=[])
    with plm_embed.open(empty.store) as store:
        assert len(store) == 0 and store.keys.tolist() == [] and list(store.iter_batches()) == []


def test_keys_of_a_large_master_are_found_without_reading_them_all(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plm_embed.reading.master._SMALL", 1)
    for spread in (4, 0):  # with 0 the first guess is mostly wrong
        monkeypatch.setattr("plm_embed.reading.master._SPREAD", spread)
        with plm_embed.open(campaign.master) as embeddings:
            for key in KEYS:
                np.testing.assert_array_equal(embeddings.by_key([key]), expected([key]))
            for absent in ("0" * 64, "f" * 64, KEYS[3][:-1] + "x", "no key"):
                with pytest.raises(PlmEmbedError, match="no vector"):
                    embeddings.by_key([absent])
            assert "keys" not in vars(embeddings)


def test_rows_that_are_not_there_are_refused(embeddings) -> None:
    np.testing.assert_array_equal(embeddings.rows([-1, 0]), embeddings[[-1, 0]])
    for wrong in ([len(KEYS)], [0, -len(KEYS) - 1]):
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


def test_it_is_a_mapping_from_ids_too(embeddings: Vectors) -> None:
    ids = list(embeddings)
    assert ids == embeddings.ids
    for id in CLEAR:
        assert id in ids
        assert np.array_equal(embeddings[id], embeddings.get(each for each in [id])[0])


@pytest.mark.parametrize(
    "damage", ["rows beyond the end", "rows in another order", "of another master"]
)
def test_an_index_that_does_not_fit_the_master_is_refused(
    campaign: Campaign, tmp_path: Path, damage: str
) -> None:
    folder = Path(shutil.copytree(campaign.master.parent, tmp_path / "copy"))
    index = folder / campaign.index.name
    with plm_embed.open(folder) as embeddings:
        embeddings.get(CLEAR[:1])  # leaves its file of ids behind
    table = pq.read_table(index)
    if damage == "of another master":
        other = make_campaign(tmp_path / "other", records=make_records()[:30], fingerprint=MEAN)
        other.gather()
        shutil.copy(other.index, index)
    else:
        rows = table["row"].to_numpy()
        wrong = rows + 99 if damage == "rows beyond the end" else rows[::-1]
        pq.write_table(
            table.set_column(table.column_names.index("row"), "row", pa.array(wrong)), index
        )
    with plm_embed.open(folder) as embeddings:
        for use in (
            lambda: embeddings.get(CLEAR[:1]),
            lambda: embeddings.to_pandas(vectors=True),
            lambda: export(folder, "npy", tmp_path / "x.npy"),
        ):
            with pytest.raises(PlmEmbedError, match=r"parquet: not the index of"):
                use()


def test_a_row_is_read_from_its_place_in_the_file(tmp_path: Path) -> None:
    """The layout behind the promise of 1 ms a row; with a margin of five for busy machines."""
    campaign = make_campaign(tmp_path)
    campaign.gather()
    count, dim = 20_000, 1280
    random = np.random.default_rng(0)
    keys = np.sort(np.array([random.bytes(32).hex() for _ in range(count)], dtype="S64"))
    with h5py.File(campaign.master) as small, connect(tmp_path / "large.h5", "w") as large:
        large.attrs.update(small.attrs)
        create_column(large, "emb_keys", count, "S64")[...] = keys
        create_column(large, "length", count, "<i4")[...] = 1
        dataset = create_vectors(
            large.create_group("representations"), "mean_l3", (count, dim), "float16"
        )
        large["emb"] = dataset
        write_bits(
            dataset, 0, np.arange(count * dim, dtype=np.uint32).astype("<u2").reshape(count, dim)
        )
        assert 256 <= dataset.chunks[0] <= 1024 and dataset.compression is None
    with plm_embed.open(tmp_path / "large.h5") as embeddings:
        times = []
        for row in random.integers(0, count, 50).tolist():
            began = time.thread_time()
            found = embeddings.by_key([keys[row].decode()])
            times.append(time.thread_time() - began)
            np.testing.assert_array_equal(found, embeddings[row : row + 1])
    assert np.median(times) < 5e-3


def first_vectors(vectors: Vectors) -> np.ndarray:
    return vectors[:3]


def test_other_processes_open_the_file_anew(campaign: Campaign, embeddings) -> None:
    with plm_embed.open(campaign.store) as store, get_context("spawn").Pool(1) as pool:
        for vectors in (embeddings, store):
            np.testing.assert_array_equal(pool.apply(first_vectors, (vectors,)), expected(KEYS[:3]))


def test_nothing_leaks_and_no_torch_is_needed() -> None:
    code = """
import sys, plm_embed
seen = {name for name in dir(plm_embed) if not name.startswith("_")}
print(seen - {*plm_embed.__all__, "errors"})
import plm_embed.reading.master
print({"torch", "click", "rich"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set()", "set()"]


def emb_dangles(file: h5py.File) -> None:
    del file["emb"]
    file["emb"] = h5py.SoftLink("/nowhere")


def other_type(file: h5py.File) -> None:
    values = file["representations/max_l2"][...]
    put(file, "representations/max_l2", values.astype(np.float64))


def fewer_rows(file: h5py.File) -> None:
    put(file, "representations/max_l2", file["representations/max_l2"][:-1])


def more_residues_than_there_are(file: h5py.File) -> None:
    file["offset"][-1] += 1


def keys_of_another_length(file: h5py.File) -> None:
    put(file, "emb_keys", file["emb_keys"][...].astype("S63"))


def no_representations(file: h5py.File) -> None:
    put(file, "representations", np.zeros(3))


@pytest.mark.parametrize(
    "damage",
    [
        emb_dangles,
        other_type,
        fewer_rows,
        more_residues_than_there_are,
        keys_of_another_length,
        no_representations,
    ],
)
def test_a_master_whose_data_sets_do_not_fit_together_is_refused(
    campaign: Campaign, tmp_path: Path, damage
) -> None:
    copy = Path(shutil.copy(campaign.master, tmp_path))
    with h5py.File(copy, "r+") as file:
        damage(file)
    with pytest.raises(
        PlmEmbedError,
        match=r"master_.*: (damaged: .*; make it again: snakemake "
        r"--forcerun gather|not a file of vectors)",
    ):
        plm_embed.open(copy)


def test_offsets_and_keys_that_are_out_of_order_are_named(
    campaign: Campaign, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(campaign.master, tmp_path))
    with h5py.File(copy, "r+") as file:
        file["offset"][5] += 1 << 40
        swap(file["emb_keys"], 20, 30)
    with plm_embed.open(copy) as embeddings:
        with pytest.raises(PlmEmbedError, match="damaged: offset"):
            embeddings.matrix(5, "per_residue_l2")
        with pytest.raises(PlmEmbedError, match="damaged: row 20 of emb_keys has changed"):
            embeddings.by_key([KEYS[3]])


def test_bits_that_flip_in_what_describes_a_master_end_in_words(
    campaign: Campaign, tmp_path: Path
) -> None:
    """Its beginning and its end, where HDF5 keeps the tables and this project the fingerprint."""
    copy = tmp_path / campaign.master.name
    whole, draw = campaign.master.read_bytes(), random.Random(3)
    for _ in range(150):
        bits = bytearray(whole)
        at = draw.choice([draw.randrange(4000), draw.randrange(len(bits) - 8000, len(bits))])
        bits[at] ^= 1 << draw.randrange(8)
        copy.write_bytes(bits)
        with suppress(PlmEmbedError), plm_embed.open(copy) as embeddings:
            assert embeddings.by_key(KEYS[:2]).shape == (2, DIM)
            assert embeddings.per_residue_by_key(KEYS[0]).shape[1] == DIM
            assert embeddings.metadata and len(embeddings.lengths) == len(KEYS)
