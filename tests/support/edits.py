"""Changes to a campaign's files, as damage and trouble make them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.io.json_files import write_sealed
from plm_embed.models.weights import MANIFEST, read_manifest
from plm_embed.store.parts import write_part
from support.campaigns import (
    Campaign,
    make_campaign,
    part_rows,
)


def edit(campaign: Campaign, change) -> None:
    with h5py.File(campaign.master, "r+") as file:
        change(file)


def put(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


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


def set_attribute(name: str, value: Any):
    return lambda campaign: edit(campaign, lambda file: file.attrs.__setitem__(name, value))
