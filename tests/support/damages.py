"""Damage to a campaign's files, and the words in which validate names it."""

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
    EVERYTHING,
    MEAN,
    Campaign,
    edit_completion,
    make_campaign,
    part_rows,
    seal_sequences,
)

Damage = Callable[[Campaign], object]


def edit(campaign: Campaign, change: Callable[[h5py.File], object]) -> None:
    with h5py.File(campaign.master, "r+") as file:
        change(file)


def put(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def swap(dataset: h5py.Dataset, one: int, other: int) -> None:
    dataset[one], dataset[other] = dataset[other], dataset[one]


def a_part(campaign: Campaign, number: int = 1) -> Path:
    return sorted(campaign.parts.iterdir())[number]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def edit_weights(campaign: Campaign, **change: Any) -> None:
    write_sealed(campaign.weights / MANIFEST, replace(read_manifest(campaign.weights), **change))


def edit_table(path: Path, place: int, **change: Any) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[place] |= change
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def take_rows(path: Path, *places: range | int) -> None:
    """Keep these rows of a table, in this order."""
    order = [row for rows in places for row in ([rows] if isinstance(rows, int) else rows)]
    pq.write_table(pq.read_table(path).take(order), path)


def add_part_of_another_fingerprint(campaign: Campaign) -> None:
    other = replace(campaign.fingerprint, weights_sha256="0" * 64)
    path = campaign.parts / "00000000-ffffffff-1-0123456789abcdef.h5"
    write_part(path, part_rows(["MKV"], other), other, {})


def take_completion(campaign: Campaign, name: str, **options: Any) -> None:
    """Take a completion record of a campaign that is made with these options."""
    options = {"fingerprint": campaign.fingerprint, **options}
    other = make_campaign(campaign.root / f"other-{name}", **options)
    shutil.copy(other.embedded / f"{name}.json", campaign.embedded / f"{name}.json")


def master(change: Callable[[h5py.File], object]) -> Damage:
    return lambda campaign: edit(campaign, change)


def set_row(name: str, row: Any, value: Any) -> Damage:
    return master(lambda file: file[name].__setitem__(row, value))


def set_attribute(name: str, value: Any) -> Damage:
    return master(lambda file: file.attrs.__setitem__(name, value))


def index(**change: Any) -> Damage:
    return lambda campaign: edit_table(campaign.index, 20, **change)


def record(outcome: str | None = None, **change: Any) -> Damage:
    """Edit the first record that has this reason for having no vector, or one that has a vector."""

    def edit_first(campaign: Campaign) -> None:
        reasons: list[str | None] = pq.read_table(campaign.records)["reason"].to_pylist()
        edit_table(campaign.records, reasons.index(outcome), **change)

    return edit_first


MOVED = r"index: .*, record \d+ is not where it belongs"
INDEX: tuple[tuple[Damage, str], ...] = (
    (index(row=3), r"index: .*, record \d+: row is 3, expected \d+"),
    (index(cache_key="0" * 64), "index: .*: cache_key is 0000"),
    (index(length=3), r"index: .*: length is 3, expected \d+"),
    (index(id="other"), "index: .*: id is other, expected p"),
    (index(function="x"), "index: .*: function is x, expected"),
    (index(number=999), MOVED),
    (lambda c: take_rows(c.index, range(20), range(21, 80)), MOVED),
    (lambda c: take_rows(c.index, range(30)), MOVED),
    (lambda c: take_rows(c.index, range(21), range(20, 80)), MOVED),
    (lambda c: cut(c.index, -8), "index: .*not a whole Parquet file"),
)
LOST = "is not where it belongs"
RECORDS: tuple[tuple[Damage, str], ...] = (
    (lambda c: take_rows(c.records, range(30), range(31, 90)), f"a.fasta, record 30 {LOST}"),
    (lambda c: take_rows(c.records, range(89)), f"records: inputs/b.csv, record 30 {LOST}"),
    (
        lambda c: take_rows(c.records, range(90), 89),
        "records: inputs/b.csv, record 30 is not in the input",
    ),
    (
        lambda c: take_rows(c.records, range(30), 31, 30, range(32, 90)),
        f"a.fasta, record 30 {LOST}",
    ),
    (lambda c: c.records.unlink(), "records: .*there is no such file"),
    (record(length=3), r"records: .*: length is 3, expected \d+"),
    (record(row=54), r"records: .*: row is 54, expected \d+"),
    (record(status="skipped"), "records: .*: status is skipped, expected embedded"),
    (record(reason="too_long"), "records: .*: reason is too_long, expected None"),
    (
        record("out_of_memory", reason="too_long"),
        "records: .*: reason is too_long, expected out_of_memory",
    ),
)
"""Only the first fault of each table is named."""

DAMAGES: dict[str, tuple[tuple[Damage, str], ...]] = {
    "parts": (
        (lambda c: a_part(c, -1).unlink(), r"parts: .*: missing, but .* names it"),
        (lambda c: cut(a_part(c, 2), -9), r"parts: .*\(truncated\?\)"),
        (lambda c: flip_a_bit(a_part(c)), "parts: .*its bytes are not those that were written"),
    ),
    "things in the store": (
        (
            lambda c: (c.parts / "00000000-ffffffff-1-0123456789abcdee.h5").write_bytes(b"no"),
            "fingerprints in the store: .*damaged, or not",
        ),
        (
            add_part_of_another_fingerprint,
            r"fingerprints in the store: .*of another fingerprint \(weights_sha256",
        ),
        (
            lambda c: (c.parts.parent / "fingerprint.json").write_text("{}"),
            "fingerprints in the store: .*not the fingerprint",
        ),
    ),
    "completion records": (
        (
            lambda c: (c.embedded / "0001.json").unlink(),
            r"completion records: .*0001\.json: there is no such file",
        ),
        (
            lambda c: take_completion(
                c, "0002", fingerprint=replace(EVERYTHING, model="esm2_other")
            ),
            r"completion records: .*0002.json: its settings differ from those of "
            r"bucket 0000 \(model: esm2_other here",
        ),
    ),
    "no completion record": (
        (lambda c: shutil.rmtree(c.embedded), "no bucket has an intact completion record"),
    ),
    "completion record without a part": (
        (lambda c: edit_completion(c, parts=()), "sequences are in none of its parts"),
    ),
    "rows of the master": (
        (
            set_row("checksums/mean_l3", 3, 1),
            r"equal their parts: row 3 of mean_l3 \(key \w+\): its checksum is not that of its",
        ),
        (
            master(lambda file: swap(file["emb"], 3, 4)),
            r"rows equal their parts: row 3 of mean_l2 \(key [0-9a-f]{64}\): differs from its part",
        ),
        (
            master(lambda file: [swap(file[name], 13, 14) for name in ("emb", "emb_keys")]),
            "keys: row 13 of emb_keys: differs from its part",
        ),
        (set_row("representations/max_l3", (7, 2), 0.5), "equal their parts: row 7 of max_l3"),
        (
            set_row("representations/per_residue_l3", (-1, 0), 0.5),
            "rows equal their parts: row 55 of per_residue_l3",
        ),
        (
            set_row("emb", (9, 0), np.nan),
            r"finite: row 9 of mean_l2 \(key [0-9a-f]{64}\): holds NaN or infinity",
        ),
        (
            master(lambda file: file["emb_keys"].__setitem__(6, file["emb_keys"][5])),
            "keys: row 6 of emb_keys: differs from its part",
        ),
        (
            master(lambda file: file["emb_keys"].__setitem__(8, file["emb_keys"][8][:63] + b"x")),
            "keys: row 8 of emb_keys: differs from its part",
        ),
        (set_row("length", 5, 7), "rows equal their parts: row 5 of length: differs from its part"),
        (set_row("windows", 5, 9), "equal their parts: row 5 of windows: differs from its part"),
        (set_row("offset", 5, 1), "equal their parts: row 5 of offset: differs from its part"),
    ),
    "shapes and types": (
        (
            master(lambda file: put(file, "emb_keys", file["emb_keys"][:-1])),
            r"shapes and types: emb_keys has shape \(55,\), expected \(56,\)",
        ),
        (
            master(lambda file: put(file, "length", np.zeros(3, "i4"))),
            r"shapes and types: length has shape \(3,\)",
        ),
        (
            master(lambda file: put(file, "representations/max_l3", np.zeros((56, 16), "f4"))),
            "shapes and types: max_l3 is stored as float32, expected float16",
        ),
        (
            master(lambda file: put(file, "emb", file["representations/max_l2"])),
            "shapes and types: emb is not mean_l2",
        ),
        (
            master(lambda file: file.create_dataset("representations/mean_l9", (56, 16), "f2")),
            "shapes and types: mean_l9 is not among the representations",
        ),
    ),
    "dataset lost, and bytes after the end": (
        (master(lambda file: file.__delitem__("representations/max_l2")), "types: .*max_l2"),
        (
            lambda c: c.master.write_bytes(c.master.read_bytes() + b"more"),
            r"master: .*\.h5: 4 bytes follow its end",
        ),
    ),
    "truncated master": ((lambda c: cut(c.master, -100), "master: .*not a whole HDF5 file"),),
    "missing master": ((lambda c: c.master.unlink(), "master: .*there is no such file"),),
    "weights": (
        (lambda c: edit_weights(c, weights_sha256="1" * 64), "weights: .*_sha256 is 1111.*, the v"),
        (lambda c: edit_weights(c, model="esm2_t6"), "weights: .*model is esm2_t6"),
        (lambda c: edit_weights(c, dim=320), "weights: mean_l2 has dimension 16, the model 320"),
    ),
    "attributes": (
        (
            set_attribute("fingerprint", MEAN.to_json()),
            "attributes: fingerprint is .*, completion records and inputs say",
        ),
        (set_attribute("model_name", "esm2_t33"), "attributes: model_name is 'esm2_t33'"),
        (set_attribute("layers", [3]), r"attributes: layers is \[3\]"),
        (set_attribute("precision", "float32"), "attributes: precision is 'float32'"),
        (set_attribute("inputs", "{}"), "attributes: inputs is '{}'"),
        (master(lambda file: file.attrs.__delitem__("pooling")), "pooling is missing"),
    ),
    "counts of the input": (
        (
            lambda c: seal_sequences(
                c.sequences,
                inputs=tuple(
                    replace(entry, records=max(entry.records, 31))
                    for entry in read_summary(c.sequences).inputs
                ),
            ),
            "counts: inputs/b.csv: 31 records in the input, 30 answered",
        ),
    ),
    **{f"tables {at}": pair for at, pair in enumerate(zip(INDEX, RECORDS, strict=True))},
}
"""Damages that are made together, each with a message of validate."""
