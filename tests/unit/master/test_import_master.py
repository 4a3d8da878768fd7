"""Masters as other programs leave them: right ones become a store, wrong ones are refused with the
deviation, and no row is taken for what it may not be.
"""

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import IMPORTED_DEVICE
from plm_embed.inference.settings import Settings
from plm_embed.master.adopt import AMBIGUOUS, UNKNOWN
from plm_embed.master.foreign import Files
from plm_embed.sequences.settings import Table
from plm_embed.store.hdf5 import encode
from plm_embed.store.parts import Part
from support.buckets import write_bucket
from support.embedded import Embedder
from support.foreign_masters import IDS, SEQUENCES, adopted, foreign_master


@pytest.mark.parametrize("by", ["id", "cache key"])
def test_a_right_master_is_not_computed_again(tmp_path: Path, prepared: Path, by: str) -> None:
    files = foreign_master(tmp_path / "old", prepared, by=by)
    done = adopted(files, prepared)
    assert (done.rows, done.checked, done.left_out) == (48, 24, {})
    assert done.relative_l2 < 1e-3 and done.cosine > 0.999999
    bucket = write_bucket(tmp_path, [*SEQUENCES[10:], "MKVNEW"])
    settings = Settings(compute_dtype="float32", scratch="")
    store = tmp_path / "old" / "store"
    record = Embedder(prepared, store, settings).embed(bucket, tmp_path / "0000.json")
    assert (record.found, record.computed) == (38, 1)
    assert record.reused_devices == (IMPORTED_DEVICE,)
    with h5py.File(files.vectors) as file:
        stored = dict(zip(SEQUENCES, file["emb"][...], strict=True))
    table = pq.read_table(bucket)
    sequences = dict(zip(*(table[name].to_pylist() for name in ("key", "sequence")), strict=True))
    for info in record.parts:
        with Part(store / record.fingerprint_id / "parts" / info.name) as part:
            for row, name in enumerate(part.keys):
                if (sequence := sequences.get(name.decode())) in stored:
                    bits = part.bits("mean_l3", np.array([row]))[0]
                    np.testing.assert_array_equal(bits, encode(stored[sequence], "float16"))


def test_a_master_of_this_package_lists_layers_and_poolings(tmp_path: Path, prepared: Path) -> None:
    stated: dict[str, Any] = {"layers": [3, 1], "pooling": ["mean", "max"], "max_length": 0}
    stated["fingerprint"] = '{"strand": "as_given"}'
    assert adopted(foreign_master(tmp_path, prepared, **stated), prepared).rows == 48
    stated["pooling"] = ["max", "mean"]
    with pytest.raises(PlmEmbedError, match="pooling is max, mean is asked for"):
        adopted(foreign_master(tmp_path, prepared, **stated), prepared)


def test_the_end_token_pooled_in_is_recognized(tmp_path: Path, prepared: Path) -> None:
    files = foreign_master(tmp_path, prepared, defect=True)
    with pytest.raises(PlmEmbedError) as caught:
        adopted(files, prepared)
    words = (
        r"(\d+) of 24 sampled rows are not the mean over the residues of layer 3 "
        r"\((\d+) the end token pooled in\)\n  relative distance to the reference: "
        r"largest 0\.\d+, median 0\.\d+, allowed 0\.001"
    )
    counted = re.search(words, str(caught.value))
    assert counted is not None, caught.value
    assert counted[1] == counted[2] and 15 <= int(counted[1]) < 24
    assert not (tmp_path / "store").exists()


def test_another_layer_than_the_master_says_is_refused(tmp_path: Path, prepared: Path) -> None:
    files = foreign_master(tmp_path, prepared, layer=2)
    with pytest.raises(PlmEmbedError, match=r"24 of 24 sampled rows .* \(24 of no known cause"):
        adopted(files, prepared)
    with h5py.File(files.vectors, "r+") as file:
        file.attrs["layer"] = 2
    with pytest.raises(PlmEmbedError, match="layer is 2, 3 is asked for"):
        adopted(files, prepared)
    assert adopted(files, prepared, Settings(layers=(2,), compute_dtype="float32")).rows == 48


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        (
            {"model_name": "esm2_t6_8M_UR50D"},
            "model_name is esm2_t6_8M_UR50D, esm2_t3_untrained is asked for",
        ),
        ({"pooling": "cls"}, "pooling is cls, mean is asked for"),
        ({"max_length": "long"}, "cannot be imported: invalid literal for int.*'long'"),
        (
            {"max_length": 12},
            "none of its 48 rows can be adopted: 48 a sequence that may have been cut",
        ),
    ],
)
def test_what_the_master_says_has_to_fit(
    tmp_path: Path, prepared: Path, attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlmEmbedError, match=message):
        adopted(foreign_master(tmp_path, prepared, **attrs), prepared)


def edited(change: Callable[[h5py.File], object]) -> Callable[[Files], Files]:
    def edit(files: Files) -> Files:
        with h5py.File(files.vectors, "r+") as file:
            change(file)
        return files

    return edit


def put(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def indexed(**columns: list[Any]) -> Callable[[Files], Files]:
    def write(files: Files) -> Files:
        assert files.index
        pq.write_table(pa.table(columns), files.index)
        return files

    return write


def without_some_bytes(files: Files) -> Files:
    with h5py.File(files.vectors, "r+") as file:
        vectors = file["emb"][...]
        del file["emb"]
        emb = file.create_dataset("emb", data=vectors, chunks=(48, 32), compression="gzip")
        start = emb.id.get_chunk_info(0).byte_offset
    content = bytearray(files.vectors.read_bytes())
    content[start : start + 100] = bytes(100)
    files.vectors.write_bytes(content)
    return files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(lambda file: put(file, "emb", file["emb"][:, :8])), "vector size is 8, 32 is ask"),
        (lambda files: replace(files, table=Table("accession", "seq")), "no column 'accession'"),
        (indexed(row=[48], brc_fea_id=["a"]), "names row 48 of 48"),
        (indexed(brc_fea_id=["a"]), "no column `row`"),
        (
            edited(lambda file: put(file, "emb_keys", file["emb_keys"][:-1])),
            "48 vectors for 47 keys",
        ),
        (
            edited(lambda file: file.__delitem__("emb_keys")),
            "cannot be imported: emb is not a vector; matrices",
        ),
        (without_some_bytes, r"embeddings\.h5: cannot be imported: "),
    ],
)
def test_files_that_are_no_master_or_damaged(
    tmp_path: Path, prepared: Path, change: Callable[[Files], Files], message: str
) -> None:
    with pytest.raises(PlmEmbedError, match=message):
        adopted(change(foreign_master(tmp_path, prepared)), prepared)
    assert not (tmp_path / "store").exists()


def test_another_storage_type_is_refused(tmp_path: Path, prepared: Path) -> None:
    settings = Settings(compute_dtype="float32", storage_dtype="float32")
    with pytest.raises(PlmEmbedError, match="storage_dtype is float16, float32 is asked for"):
        adopted(foreign_master(tmp_path, prepared), prepared, settings)


def test_the_command(tmp_path: Path, prepared: Path) -> None:
    files = foreign_master(tmp_path, prepared)
    columns = "--id-column brc_fea_id --sequence-column seq --index-id brc_fea_id --sample 4"
    paths = ["--index", files.index, "--sequences", files.sequences[0], "--weights", prepared]
    command = ["import", files.vectors, *paths, *columns.split(), "--store", tmp_path / "store"]
    done = CliRunner().invoke(group, [*map(str, command)], catch_exceptions=False)
    assert done.exit_code == 0 and "48 rows adopted" in done.output


CHANGED = "MKVCHANGEDSINCE"


def give_sequences(files: Files, sequences: dict[str, str]) -> None:
    lines = [f"{id},{sequence}" for id, sequence in sequences.items()]
    files.sequences[0].write_text("\n".join(["brc_fea_id,seq", *lines]) + "\n")


def give_column(files: Files, name: str, values: list[str]) -> None:
    assert files.index
    table = pq.read_table(files.index)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, pa.array(values)), files.index)


def test_rows_that_cannot_be_told_or_used_are_left_out(tmp_path: Path, prepared: Path) -> None:
    # without a column of ids, which is needed only where no key names the rows
    files = replace(foreign_master(tmp_path, prepared, max_length=80), id_column="")
    lines = files.sequences[0].read_text().splitlines()
    again = [*lines[:1], *lines[4:], f"{IDS[5]},MKVOTHER"]
    files.sequences[0].write_text("\n".join(again) + "\n")
    long = sum(len(sequence) > 78 for sequence in [*SEQUENCES[3:5], *SEQUENCES[6:]])
    done = adopted(files, prepared)
    assert done.left_out["a sequence that may have been cut"] == long
    # three removed, one id of two sequences
    assert done.left_out[UNKNOWN] == 4
    assert done.rows == 48 - sum(done.left_out.values())


@pytest.mark.parametrize("where", ["master", "index"])
def test_a_sequence_that_changed_under_its_id_is_left_out(
    tmp_path: Path, prepared: Path, where: str
) -> None:
    files = foreign_master(tmp_path, prepared)
    keys = [hashlib.sha256(sequence.encode()).hexdigest() for sequence in SEQUENCES]
    if where == "master":
        edited(lambda file: put(file, "emb_keys", np.array(keys, h5py.string_dtype())))(files)
    else:
        give_column(files, "cache_key", keys)
    give_sequences(files, dict(zip(IDS, SEQUENCES, strict=True)) | {IDS[7]: CHANGED})
    done = adopted(files, prepared)
    assert (done.rows, done.by_key, done.left_out) == (47, True, {UNKNOWN: 1})


def test_an_id_of_several_rows_names_none_of_them(tmp_path: Path, prepared: Path) -> None:
    files = foreign_master(tmp_path, prepared, by="key")
    again = [IDS[7] if number == 30 else id for number, id in enumerate(IDS)]
    give_column(files, "brc_fea_id", again)
    done = adopted(files, prepared)
    assert (done.rows, done.by_key, done.left_out) == (46, False, {AMBIGUOUS: 2})


def test_a_row_whose_ids_name_different_sequences_by_now_has_none(
    tmp_path: Path, prepared: Path
) -> None:
    files = foreign_master(tmp_path, prepared, by="key")
    assert files.index
    table = pq.read_table(files.index)
    pq.write_table(pa.concat_tables([table, table.slice(7, 1)]), files.index)
    give_column(files, "brc_fea_id", [*IDS, "twin"])
    sequences = dict(zip(IDS, SEQUENCES, strict=True)) | {"twin": SEQUENCES[7]}
    give_sequences(files, sequences)
    assert adopted(files, prepared).rows == 48
    shutil.rmtree(tmp_path / "store")
    give_sequences(files, sequences | {IDS[7]: CHANGED})
    done = adopted(files, prepared)
    assert (done.rows, done.left_out) == (47, {AMBIGUOUS: 1})
