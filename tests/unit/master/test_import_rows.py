"""Which sequence each row of another program's master is of: nothing is taken for what it may not
be.
"""

import hashlib
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.master.adopt import AMBIGUOUS, UNKNOWN
from plm_embed.master.foreign import Files
from support.foreign_masters import IDS, SEQUENCES, adopted, foreign_master


def sha256(sequence: str) -> str:
    return hashlib.sha256(sequence.encode()).hexdigest()


def give_keys(files: Files, keys: list[str]) -> None:
    with h5py.File(files.vectors, "r+") as file:
        del file["emb_keys"]
        file["emb_keys"] = np.array(keys, dtype=h5py.string_dtype())


def give_sequences(files: Files, sequences: dict[str, str]) -> None:
    lines = [f"{id},{sequence}" for id, sequence in sequences.items()]
    files.sequences[0].write_text("\n".join(["brc_fea_id,seq", *lines]) + "\n")


CHANGED = "MKVCHANGEDSINCE"


@pytest.mark.parametrize("where", ["master", "index"])
def test_a_sequence_that_changed_under_its_id_is_left_out(
    tmp_path: Path, prepared: Path, where: str
) -> None:
    files = foreign_master(tmp_path, prepared)
    keys = [sha256(sequence) for sequence in SEQUENCES]
    if where == "master":
        give_keys(files, keys)
    else:
        table = pq.read_table(files.index)
        at = table.column_names.index("cache_key")
        pq.write_table(table.set_column(at, "cache_key", pa.array(keys)), files.index)
    give_sequences(files, dict(zip(IDS, SEQUENCES, strict=True)) | {IDS[7]: CHANGED})
    done = adopted(files, prepared)
    assert (done.rows, done.by_key, done.left_out) == (47, True, {UNKNOWN: 1})


def test_an_id_of_several_rows_names_none_of_them(tmp_path: Path, prepared: Path) -> None:
    files = foreign_master(tmp_path, prepared, by="key")
    table = pq.read_table(files.index)
    again = [IDS[7] if number == 30 else id for number, id in enumerate(IDS)]
    at = table.column_names.index("brc_fea_id")
    pq.write_table(table.set_column(at, "brc_fea_id", pa.array(again)), files.index)
    done = adopted(files, prepared)
    assert (done.rows, done.by_key, done.left_out) == (46, False, {AMBIGUOUS: 2})


def test_a_row_whose_ids_name_different_sequences_by_now_has_none(
    tmp_path: Path, prepared: Path
) -> None:
    files = foreign_master(tmp_path, prepared, by="key")
    table = pq.read_table(files.index)
    twin = table.slice(7, 1).set_column(
        table.column_names.index("brc_fea_id"), "brc_fea_id", pa.array(["twin"])
    )
    pq.write_table(pa.concat_tables([table, twin]), files.index)
    sequences = dict(zip(IDS, SEQUENCES, strict=True)) | {"twin": SEQUENCES[7]}
    give_sequences(files, sequences)
    assert adopted(files, prepared).rows == 48
    shutil.rmtree(tmp_path / "store")
    give_sequences(files, sequences | {IDS[7]: CHANGED})
    done = adopted(files, prepared)
    assert (done.rows, done.left_out) == (47, {AMBIGUOUS: 1})
