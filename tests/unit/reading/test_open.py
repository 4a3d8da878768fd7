"""Paths that `plm_embed.open` takes, masters and stores, and refuses: absent, foreign and damaged
files.
"""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.exports import export
from plm_embed.store.store import part_names
from support.campaigns import (
    DIM,
    EVERYTHING,
    MEAN,
    Campaign,
    gathered_campaign,
    make_campaign,
    vectors,
)
from support.damages import put, swap
from support.expected_rows import CLEAR, KEYS, SEQUENCES, expected
from support.made_up_sequences import make_records


def test_a_master_its_index_or_a_folder_around_it(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(campaign.master.parent))
    folder = campaign.master.parent
    for path in (campaign.master, campaign.index, folder, str(campaign.results), "~"):
        with plm_embed.open(path) as embeddings:
            assert embeddings.path == campaign.master
            assert repr(embeddings).endswith(
                "58 x 16, max_l2, max_l3, mean_l2, mean_l3, per_residue_l2, per_residue_l3>"
            )


def test_masters_of_any_family_are_found_and_several_are_refused(
    campaign: Campaign, tmp_path: Path
) -> None:
    for suffix in (".h5", ".parquet"):
        shutil.copy(
            campaign.master.with_suffix(suffix), tmp_path / f"master_esm1b_embeddings{suffix}"
        )
    with plm_embed.open(tmp_path) as embeddings:
        assert embeddings.path == tmp_path / "master_esm1b_embeddings.h5"
    shutil.copy(campaign.master, tmp_path)
    stores = tmp_path / "two"
    for fingerprint in (MEAN, EVERYTHING):
        make_campaign(stores, fingerprint=fingerprint)
    for folder, words in (
        (tmp_path, r"holds 2 masters; open one of them: .*/master_esm1b_.*, .*/master_esm2_"),
        (stores / "store", "holds 2 stores of different settings; open one of them"),
    ):
        with pytest.raises(PlmEmbedError, match=words):
            plm_embed.open(folder)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "no such file, or no master in it; give a master"),
        ("text.h5", "text.h5: damaged, or not a file of embeddings: .*signature not found.$"),
        (
            "other.h5",
            r"other.h5: damaged, or not .*; adopt vectors of another program with",
        ),
        ("damaged", r"damaged, or not .*; delete .*h5 and run the campaign again$"),
        (5, "path: 5 is not a path"),
        (b"x", "path: b'x' is not a path"),
        ("", "path: is empty; give a path"),
        ("~nobody_has_this_name/x", "path: .~nobody_has_this_name/x.: "),
    ],
)
def test_paths_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged").mkdir()
    for name in ("text.h5", "damaged/master_esm2_embeddings.h5"):
        Path(name).write_text("text")
    with h5py.File("other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(PlmEmbedError, match=message):
        plm_embed.open(path)


def test_a_master_without_its_index_has_keys(campaign: Campaign, tmp_path: Path) -> None:
    shutil.copy(campaign.master, tmp_path)
    with plm_embed.open(tmp_path) as embeddings:
        np.testing.assert_array_equal(embeddings.by_key(KEYS[:2]), expected(KEYS[:2]))
        with pytest.raises(PlmEmbedError, match=r"\.parquet: there is no such file"):
            embeddings.get(["p1"])


def test_an_empty_master_is_read_and_an_empty_store_is_refused(tmp_path: Path) -> None:
    empty = gathered_campaign(tmp_path, records=[])
    with plm_embed.open(empty.master) as embeddings:
        assert len(embeddings) == len(embeddings.keys) == 0
        assert embeddings[:].shape == (0, 0)
        assert list(embeddings.iter_batches()) == []
        with pytest.raises(PlmEmbedError, match="no vector"):
            embeddings.by_key(["f" * 64])
    with pytest.raises(PlmEmbedError, match="holds no vectors yet; wait until the first job"):
        plm_embed.open(empty.store)


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    half = gathered_campaign(tmp_path, fingerprint=replace(MEAN, storage_dtype="bfloat16"))
    with h5py.File(half.master) as file, plm_embed.open(half.master) as embeddings:
        # in a notebook both are open
        assert embeddings[:].dtype == np.float32
        np.testing.assert_array_equal(embeddings[:], file["emb"][...])


def test_a_store_is_read_by_key(campaign: Campaign, embeddings) -> None:
    for path in (campaign.store, campaign.store / EVERYTHING.id):
        with plm_embed.open(path) as store:
            assert (len(store), store.dim, store.names) == (
                len(KEYS),
                DIM,
                sorted(EVERYTHING.representations),
            )
            assert list(store) == KEYS and store.fingerprint == EVERYTHING
            assert store.lengths.tolist() == [len(SEQUENCES[key]) for key in KEYS]
            for name in ("emb", "mean_l3", "max_l2", "per_residue_l3"):
                np.testing.assert_array_equal(store.to_numpy(name), embeddings.to_numpy(name))
            chosen = [KEYS[9], KEYS[1], KEYS[9]]
            np.testing.assert_array_equal(store.by_key(chosen), expected(chosen))
            np.testing.assert_array_equal(store.get(chosen), expected(chosen))
            np.testing.assert_array_equal(store[10:40:3], embeddings[10:40:3])
            assert store[[]].shape == store.by_key([]).shape == (0, DIM)
            matrix = vectors(SEQUENCES[KEYS[3]], EVERYTHING)["per_residue_l2"].astype(np.float16)
            for reader in (store, embeddings):
                np.testing.assert_array_equal(reader.per_residue_by_key(KEYS[3]), matrix)
            with pytest.raises(PlmEmbedError, match="no vector for p1; a key is the SHA-256"):
                store.get(["p1"])
            with pytest.raises(PlmEmbedError, match=r"keys are a list: by_key\(\[key\]\)"):
                store.by_key(KEYS[3])
            with pytest.raises(PlmEmbedError, match="a store has keys, no records: open a master"):
                store.to_pandas()
            assert KEYS[3] in store and "f" * 64 not in store and "p1" not in store
            assert store.to_anndata().obs_names.tolist() == KEYS


def test_a_store_into_which_a_part_is_being_copied_is_read_without_it(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, parts=1)
    whole = sorted(campaign.parts.iterdir())
    (campaign.parts / f".tmp-0123-{whole[0].name}").write_bytes(whole[0].read_bytes()[:1000])
    (campaign.parts / f"{whole[0].name}.damaged").write_bytes(b"set aside")
    with plm_embed.open(campaign.store) as store:
        assert len(store) == len(KEYS)
    assert part_names(campaign.parts) == [path.name for path in whole]


@pytest.mark.parametrize("damage", ["beyond the end", "in another order", "of another master"])
def test_an_index_that_does_not_fit_the_master_is_refused(
    campaign: Campaign, tmp_path: Path, damage: str
) -> None:
    folder = Path(shutil.copytree(campaign.master.parent, tmp_path / "copy"))
    index, table = folder / campaign.index.name, pq.read_table(campaign.index)
    if damage == "of another master":
        other = gathered_campaign(tmp_path / "other", records=make_records()[:30], fingerprint=MEAN)
        shutil.copy(other.index, index)
    else:
        rows = table["row"].to_numpy()
        rows = pa.array(rows + 99 if damage == "beyond the end" else rows[::-1])
        place = table.column_names.index("row")
        pq.write_table(table.set_column(place, "row", rows), index)
    with plm_embed.open(folder) as embeddings:
        for use in (
            lambda: embeddings.get(CLEAR[:1]),
            embeddings.to_pandas,
            lambda: embeddings.nearest(vectors=embeddings[:9], k=9),
            lambda: export(folder, "npy", tmp_path / "x.npy"),
        ):
            with pytest.raises(PlmEmbedError, match=r"parquet: not the index of"):
                use()


def test_nothing_leaks_and_torch_is_loaded_when_it_is_asked_for() -> None:
    code = """
import sys, plm_embed
seen = {name for name in dir(plm_embed) if not name.startswith("_")}
print(seen - {*plm_embed.__all__, "errors"})
import plm_embed.reading.open
print({"torch", "click", "rich"} & set(sys.modules), flush=True)
sys.modules["torch"] = None
from plm_embed.reading.dataset import Dataset
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["set()", "set()"]
    assert "torch is not installed: pip install 'plm-embed[embed]'" in done.stderr


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("emb", lambda _: h5py.SoftLink("/nowhere")),
        ("representations/max_l2", lambda values: values.astype(np.float64)),
        ("representations/max_l2", lambda values: values[:-1]),
        ("emb_keys", lambda keys: keys.astype("S63")),
        ("representations", lambda _: np.zeros(3)),
    ],
)
def test_a_master_whose_data_sets_do_not_fit_together_is_refused(
    campaign: Campaign, tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    copy = Path(shutil.copy(campaign.master, tmp_path))
    with h5py.File(copy, "r+") as file:
        stored = file[name]
        put(file, name, change(stored[...] if isinstance(stored, h5py.Dataset) else None))
    with pytest.raises(PlmEmbedError, match=r"master_.*: damaged, .*; delete .*\.h5 and run"):
        plm_embed.open(copy)


def test_offsets_and_keys_that_are_out_of_order_are_named(
    campaign: Campaign, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(campaign.master, tmp_path))
    with h5py.File(copy, "r+") as file:
        file["offset"][5] += 1 << 40
        swap(file["emb_keys"], 20, 30)
    with plm_embed.open(copy) as embeddings:
        with pytest.raises(PlmEmbedError, match=r"damaged, .*: offset"):
            embeddings.matrix(5, "per_residue_l2")
        with pytest.raises(PlmEmbedError, match=r"damaged, .*: row 20 of emb_keys has changed"):
            embeddings.by_key([KEYS[3]])


def test_bits_that_flip_in_what_describes_a_master_end_in_words(
    campaign: Campaign, tmp_path: Path
) -> None:
    """Its beginning and its end, where HDF5 keeps the tables and this project the fingerprint."""
    copy = tmp_path / campaign.master.name
    whole, draw = campaign.master.read_bytes(), random.Random(3)
    for _ in range(40):
        bits = bytearray(whole)
        at = draw.choice([draw.randrange(4000), draw.randrange(len(bits) - 8000, len(bits))])
        bits[at] ^= 1 << draw.randrange(8)
        copy.write_bytes(bits)
        with suppress(PlmEmbedError), plm_embed.open(copy) as embeddings:
            assert embeddings.by_key(KEYS[:2]).shape == (2, DIM)
            assert embeddings.per_residue_by_key(KEYS[0]).shape[1] == DIM
            assert embeddings.metadata and len(embeddings.lengths) == len(KEYS)
