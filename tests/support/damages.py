"""Damage to a campaign's files, and how validate names it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.io.json_files import write_sealed
from plm_embed.models.weights import MANIFEST, read_manifest
from plm_embed.sequences.summary import read_summary
from plm_embed.store.parts import write_part
from support.campaigns import (
    MEAN,
    Campaign,
    edit_completion,
    make_campaign,
    part_rows,
    seal_sequences,
)


def edit(campaign: Campaign, change) -> None:
    with h5py.File(campaign.master, "r+") as file:
        change(file)


def put(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def put_row(dataset: h5py.Dataset, row: int, value: Any) -> None:
    dataset[row] = value


def swap(dataset: h5py.Dataset, one: int, other: int) -> None:
    dataset[one], dataset[other] = dataset[other], dataset[one]


def a_part(campaign: Campaign) -> Path:
    return sorted(campaign.parts.iterdir())[1]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def edit_weights(campaign: Campaign, **change: Any) -> None:
    write_sealed(campaign.weights / MANIFEST, replace(read_manifest(campaign.weights), **change))


def edit_table(path: Path, place: int, **change: Any) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[place] |= change
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def drop_row(path: Path, row: int) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, row), table.slice(row + 1)]), path)


def double_row(path: Path, row: int) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, row + 1), table.slice(row)]), path)


def swap_rows(path: Path, row: int) -> None:
    table = pq.read_table(path)
    order = [*range(row), row + 1, row, *range(row + 2, table.num_rows)]
    pq.write_table(table.take(order), path)


def add_part_of_another_fingerprint(campaign: Campaign) -> None:
    other = replace(campaign.fingerprint, weights_sha256="0" * 64)
    path = campaign.parts / "00000000-ffffffff-1-0123456789abcdef.h5"
    write_part(path, part_rows(["MKV"], other), other, {})


def take_completion_of_other_buckets(campaign: Campaign) -> None:
    other = make_campaign(
        campaign.root / "other", fingerprint=campaign.fingerprint, buckets=4, out_of_memory=2
    )
    shutil.copy(other.embedded / "0001.json", campaign.embedded / "0001.json")


def take_completion_of_another_model(campaign: Campaign) -> None:
    other = make_campaign(
        campaign.root / "other", fingerprint=replace(campaign.fingerprint, model="esm2_other")
    )
    shutil.copy(other.embedded / "0001.json", campaign.embedded / "0001.json")


def lose_the_last_row(campaign: Campaign) -> None:
    """A master that is consistent in itself, but a sequence short."""

    def shorten(file: h5py.File) -> None:
        for name in ("emb_keys", "length", "windows"):
            values = file[name][:-1]
            del file[name]
            file[name] = values

    edit(campaign, shorten)


def embedded_record(campaign: Campaign) -> int:
    rows: list[int | None] = pq.read_table(campaign.records)["row"].to_pylist()
    return next(at for at, row in enumerate(rows) if row is not None and at > 5)


def skipped_record(campaign: Campaign) -> int:
    reasons: list[str | None] = pq.read_table(campaign.records)["reason"].to_pylist()
    return reasons.index("out_of_memory")


Damage = Callable[[Campaign], object]


def master(change: Callable[[h5py.File], object]) -> Damage:
    return lambda campaign: edit(campaign, change)


def set_attribute(name: str, value: Any) -> Damage:
    return master(lambda file: file.attrs.__setitem__(name, value))


def index(**change: Any) -> Damage:
    return lambda campaign: edit_table(campaign.index, 20, **change)


def record(**change: Any) -> Damage:
    return lambda campaign: edit_table(campaign.records, embedded_record(campaign), **change)


DAMAGES = {
    "missing part": (lambda c: a_part(c).unlink(), r"parts: .*: missing, but .* names it"),
    "truncated part": (
        lambda c: a_part(c).write_bytes(a_part(c).read_bytes()[:-9]),
        r"parts: .*\(truncated\?\)",
    ),
    "changed part": (
        lambda c: flip_a_bit(a_part(c)),
        "parts: .*its bytes are not those that were written",
    ),
    "part that is no part": (
        lambda c: (c.parts / "00000000-ffffffff-1-0123456789abcdef.h5").write_bytes(b"no"),
        "fingerprints in the store: .*damaged, or not",
    ),
    "wrong checksum": (
        lambda c: edit(c, lambda f: put_row(f["checksums/mean_l3"], 3, 1)),
        r"equal their parts: row 3 of mean_l3 \(key \w+\): its checksum is not that of its part",
    ),
    "part of another fingerprint": (
        add_part_of_another_fingerprint,
        r"fingerprints in the store: .*of another fingerprint \(weights_sha256",
    ),
    "note of the store edited": (
        lambda c: (c.parts.parent / "fingerprint.json").write_text("{}"),
        "fingerprints in the store: .*not the fingerprint",
    ),
    "missing completion record": (
        lambda c: (c.embedded / "0001.json").unlink(),
        r"completion records: .*0001\.json: there is no such file",
    ),
    "no completion record at all": (
        lambda c: shutil.rmtree(c.embedded),
        "no bucket has an intact completion record",
    ),
    "completion record of other buckets": (
        take_completion_of_other_buckets,
        "completion records: .*another number of buckets",
    ),
    "completion record of another model": (
        take_completion_of_another_model,
        r"completion records: .*0001.json: its settings differ from those of "
        r"bucket 0000 \(model: esm2_other here",
    ),
    "completion record without a part": (
        lambda c: edit_completion(c, parts=()),
        "sequences are in none of its parts",
    ),
    "swapped vectors": (
        master(lambda file: swap(file["emb"], 3, 4)),
        r"rows equal their parts: row 3 of mean_l2 \(key [0-9a-f]{64}\): differs from its part",
    ),
    "swapped rows with their keys": (
        master(lambda file: [swap(file[name], 3, 4) for name in ("emb", "emb_keys", "length")]),
        "keys: row 3 of emb_keys: differs from its part",
    ),
    "changed value of a second layer": (
        master(lambda file: file["representations/max_l3"].__setitem__((7, 2), 0.5)),
        "rows equal their parts: row 7 of max_l3",
    ),
    "changed residue": (
        master(lambda file: file["representations/per_residue_l3"].__setitem__((-1, 0), 0.5)),
        "rows equal their parts: row 55 of per_residue_l3",
    ),
    "NaN": (
        master(lambda file: file["emb"].__setitem__((9, 0), np.nan)),
        r"finite: row 9 of mean_l2 \(key [0-9a-f]{64}\): holds NaN or infinity",
    ),
    "duplicate key": (
        master(lambda file: file["emb_keys"].__setitem__(6, file["emb_keys"][5])),
        "keys: row 6 of emb_keys: differs from its part",
    ),
    "another key": (
        master(lambda file: file["emb_keys"].__setitem__(6, file["emb_keys"][6][:63] + b"x")),
        "keys: row 6 of emb_keys: differs from its part",
    ),
    "lost row": (
        lose_the_last_row,
        r"shapes and types: emb_keys has shape \(55,\), expected \(56,\)",
    ),
    "wrong length in the master": (
        master(lambda file: file["length"].__setitem__(5, 7)),
        "rows equal their parts: row 5 of length: differs from its part",
    ),
    "wrong windows in the master": (
        master(lambda file: file["windows"].__setitem__(5, 9)),
        "rows equal their parts: row 5 of windows: differs from its part",
    ),
    "wrong offset": (
        master(lambda file: file["offset"].__setitem__(5, file["offset"][5] - 1)),
        "rows equal their parts: row 5 of offset: differs from its part",
    ),
    "other type": (
        master(lambda file: put(file, "representations/max_l3", np.zeros((56, 16), "f4"))),
        "shapes and types: max_l3 is stored as float32, expected float16",
    ),
    "other shape": (
        master(lambda file: put(file, "length", np.zeros(3, "i4"))),
        r"shapes and types: length has shape \(3,\)",
    ),
    "emb is another representation": (
        master(lambda file: put(file, "emb", file["representations/max_l2"])),
        "shapes and types: emb is not mean_l2",
    ),
    "vectors that nobody computed": (
        master(
            lambda file: file.create_dataset(
                "representations/mean_l9", data=np.zeros((56, 16), "f2")
            )
        ),
        "shapes and types: mean_l9 is not among the representations",
    ),
    "missing dataset": (master(lambda file: file.__delitem__("representations/max_l2")), "max_l2"),
    "bytes after the master's end": (
        lambda c: c.master.write_bytes(c.master.read_bytes() + b"more"),
        r"master: .*\.h5: 4 bytes follow its end",
    ),
    "truncated master": (
        lambda c: c.master.write_bytes(c.master.read_bytes()[:-100]),
        "master: .*not a whole HDF5 file",
    ),
    "missing master": (lambda c: c.master.unlink(), "master: .*there is no such file"),
    "wrong weights": (
        lambda c: edit_weights(c, weights_sha256="1" * 64),
        "weights: .*_sha256 is 1111.*, the vectors",
    ),
    "wrong model": (lambda c: edit_weights(c, model="esm2_t6"), "weights: .*model is esm2_t6"),
    "wrong dimension": (
        lambda c: edit_weights(c, dim=320),
        "weights: mean_l2 has dimension 16, the model 320",
    ),
    "edited fingerprint": (
        set_attribute("fingerprint", MEAN.to_json()),
        "attributes: fingerprint is .*, completion records and inputs say",
    ),
    "edited attribute": (
        set_attribute("model_name", "esm2_t33"),
        "attributes: model_name is 'esm2_t33'",
    ),
    "edited layers": (set_attribute("layers", [3]), r"attributes: layers is \[3\]"),
    "edited precision": (
        set_attribute("precision", "float32"),
        "attributes: precision is 'float32'",
    ),
    "edited inputs": (set_attribute("inputs", "{}"), "attributes: inputs is '{}'"),
    "missing attribute": (
        master(lambda file: file.attrs.__delitem__("pooling")),
        "pooling is missing",
    ),
    "index row edited": (index(row=3), r"index: .*, record \d+: row is 3, expected \d+"),
    "index key edited": (index(cache_key="0" * 64), "index: .*: cache_key is 0000"),
    "index length edited": (index(length=3), r"index: .*: length is 3, expected \d+"),
    "index id edited": (index(id="other"), "index: .*: id is other, expected p"),
    "index kept column edited": (index(function="x"), "index: .*: function is x, expected"),
    "index record unknown": (index(number=999), r"index: .*, record \d+ is not where it belongs"),
    "index entry lost": (
        lambda c: drop_row(c.index, 20),
        "index: .*, record .* is not where it belongs",
    ),
    "index end lost": (
        lambda c: c.index.write_bytes(c.index.read_bytes()[:-8]),
        "index: .*not a whole Parquet file",
    ),
    "index rows lost": (
        lambda c: pq.write_table(pq.read_table(c.index).slice(0, 30), c.index),
        r"index: .*, record \d+ is not where it belongs",
    ),
    "index entry doubled": (
        lambda c: double_row(c.index, 20),
        r"index: .*, record \d+ is not where it belongs",
    ),
    "record lost": (
        lambda c: drop_row(c.records, 30),
        "a.fasta, record 30 is not where it belongs",
    ),
    "last record lost": (
        lambda c: drop_row(c.records, 89),
        "records: inputs/b.csv, record 30 is not where it belongs",
    ),
    "record doubled": (
        lambda c: double_row(c.records, 89),
        "records: inputs/b.csv, record 30 is not in the input",
    ),
    "records swapped": (
        lambda c: swap_rows(c.records, 30),
        "a.fasta, record 30 is not where it belongs",
    ),
    "records file lost": (lambda c: c.records.unlink(), "records: .*there is no such file"),
    "record's length edited": (record(length=3), r"records: .*: length is 3, expected \d+"),
    "record's row edited": (record(row=54), r"records: .*: row is 54, expected \d+"),
    "record's status edited": (
        record(status="skipped"),
        "records: .*: status is skipped, expected embedded",
    ),
    "record's row removed": (
        record(row=None, status="skipped", reason="too_long"),
        "records: .*: status is skipped, expected embedded",
    ),
    "record's reason edited": (
        lambda c: edit_table(c.records, skipped_record(c), reason="too_long"),
        "records: .*: reason is too_long, expected out_of_memory",
    ),
    "vector with a reason": (
        record(reason="too_long"),
        "records: .*: reason is too_long, expected None",
    ),
    "counts of the input edited": (
        lambda c: seal_sequences(
            c.sequences,
            inputs=tuple(
                replace(entry, records=max(entry.records, 31))
                for entry in read_summary(c.sequences).inputs
            ),
        ),
        "counts: inputs/b.csv: 31 records in the input, 30 answered",
    ),
}
