"""The master, its index and the records: complete, in order, and the same bytes whatever the
buckets.
"""

import hashlib
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.io import parquet as tables
from plm_embed.keys import bucket_names
from plm_embed.master import campaign as campaign_pieces
from plm_embed.sequences.summary import read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import encode
from plm_embed.store.store import Store
from support.buckets import bucket_of
from support.campaigns import (
    DIM,
    EVERYTHING,
    MEAN,
    Campaign,
    make_campaign,
    publish,
    vectors,
    write_completion,
)
from support.made_up_sequences import make_records

CROP = replace(EVERYTHING, storage_dtype="bfloat16", long_sequences=LongSequences("crop", 30))


def digests(campaign: Campaign) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in campaign.outputs]


@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING, CROP])
def test_every_vector_lies_in_the_row_of_its_key(tmp_path: Path, fingerprint, monkeypatch) -> None:
    monkeypatch.setattr(campaign_pieces, "BLOCK_BYTES", 3000)  # several blocks per bucket
    campaign = make_campaign(tmp_path, fingerprint=fingerprint)
    campaign.gather()
    sequences = {record["key"]: record["sequence"] for record in make_records() if record["key"]}
    with h5py.File(campaign.master) as file:
        keys = [key.decode() for key in file["emb_keys"]]
        assert keys == sorted(sequences)
        assert file["length"][...].tolist() == [len(sequences[key]) for key in keys]
        assert (
            file["emb"]
            == file["representations/mean_l2" if fingerprint != MEAN else "representations/mean_l3"]
        )
        dtype = fingerprint.storage_dtype
        for name in fingerprint.representations:
            expected = [encode(vectors(sequences[key], fingerprint)[name], dtype) for key in keys]
            found = encode(file["representations"][name][...], dtype)
            if name.startswith("per_residue"):
                ends = np.cumsum([len(matrix) for matrix in expected])
                assert file["offset"][...].tolist() == [0, *ends]
                np.testing.assert_array_equal(found, np.concatenate(expected))
            else:
                np.testing.assert_array_equal(found, np.stack(expected))


@pytest.mark.workflow
@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING])
def test_bytes_do_not_depend_on_buckets_parts_or_repetition(tmp_path: Path, fingerprint) -> None:
    found = []
    for buckets, parts in ((1, 1), (3, 2), (16, 3)):
        campaign = make_campaign(
            tmp_path / str(buckets), fingerprint=fingerprint, buckets=buckets, parts=parts
        )
        campaign.gather()
        found.append(digests(campaign))
        campaign.gather()
        found.append(digests(campaign))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING])
def test_checksums_of_parts_go_along_and_are_made_where_a_part_keeps_none(
    tmp_path: Path, fingerprint
) -> None:
    campaign = make_campaign(tmp_path, fingerprint=fingerprint)
    campaign.gather()
    expected = digests(campaign)
    store = Store(campaign.store, fingerprint)
    stripped = tmp_path / "part.h5"
    for path in list(campaign.parts.glob("*.h5")):
        shutil.copy(path, stripped)
        path.unlink()
        with h5py.File(stripped, "r+") as file:
            del file[checksums.GROUP]
        store.publish(stripped)
    with h5py.File(campaign.master) as file:
        keys = [key.decode() for key in file["emb_keys"]]
    names = bucket_names(read_summary(campaign.sequences).buckets)
    for number, name in enumerate(names):
        mine = [key for key in keys if bucket_of(key, len(names)) == number]
        write_completion(campaign, name, mine, {})
    campaign.gather()
    assert digests(campaign) == expected


def test_nothing_depends_on_how_many_rows_are_read_at_a_time(tmp_path: Path, monkeypatch) -> None:
    campaign = make_campaign(tmp_path, fingerprint=CROP, out_of_memory=2)
    campaign.gather()
    expected = digests(campaign)
    monkeypatch.setattr(tables, "_ROWS", 7)
    monkeypatch.setattr(campaign_pieces, "BLOCK_BYTES", 1)
    campaign.gather()
    assert digests(campaign) == expected


def test_the_index_has_a_row_for_every_record_with_a_vector(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, out_of_memory=3)
    campaign.gather()
    index = pq.read_table(campaign.index)
    names = ["id", "cache_key", "row", "length", "source", "number", "function"]
    assert index.schema.names == names
    with h5py.File(campaign.master) as file:
        keys = [key.decode() for key in file["emb_keys"]]
    accepted = [record for record in make_records() if record["key"] in set(keys)]
    expected = sorted(
        accepted, key=lambda record: (record["key"], record["source"], record["number"])
    )
    assert index.to_pylist() == [
        {name: record[name] for name in ("id", "length", "source", "number", "function")}
        | {"cache_key": record["key"], "row": keys.index(record["key"])}
        for record in expected
    ]


def test_every_record_gets_its_fate_in_input_order(tmp_path: Path) -> None:
    fingerprint = replace(MEAN, long_sequences=LongSequences("window", 40, 10))
    campaign = make_campaign(tmp_path, fingerprint=fingerprint, out_of_memory=2)
    campaign.gather()
    before = make_records()
    records = pq.read_table(campaign.records).to_pylist()
    assert [(r["source"], r["number"], r["id"]) for r in records] == [
        (r["source"], r["number"], r["id"]) for r in before
    ]
    lost = sorted({record["key"] for record in before if record["key"]})[:2]
    for old, new in zip(before, records, strict=True):
        reason, detail, events = old["reason"], old["detail"], old["events"]
        status = old["status"]
        if old["key"] in lost:
            status, reason, detail = "skipped", "out_of_memory", f"{old['length']} residues"
        elif status == "accepted":
            windowed = "windowed=2" if old["length"] > 40 else ""
            events = ";".join(filter(None, [events, windowed]))
            status = "embedded_with_events" if events else "embedded"
        outcome = (new["status"], new["reason"], new["detail"], new["events"] or "")
        assert outcome == (status, reason, detail, events or "")
        assert (new["row"] is None) == (status == "skipped")
    assert Counter(record["status"] for record in records).keys() == {
        "embedded",
        "embedded_with_events",
        "skipped",
    }


def test_cropped_residues_and_skipped_lengths_are_told(tmp_path: Path) -> None:
    cropped = make_campaign(tmp_path / "crop", fingerprint=CROP)
    skipped = make_campaign(
        tmp_path / "skip", fingerprint=replace(MEAN, long_sequences=LongSequences("skip", 30))
    )
    for campaign in (cropped, skipped):
        campaign.gather()
        for record in pq.read_table(campaign.records).to_pylist():
            if record["key"] and record["length"] > 30:
                if campaign is cropped:
                    assert f"cropped={record['length'] - 30}" in record["events"].split(";")
                else:
                    assert (record["status"], record["reason"]) == ("skipped", "too_long")


def test_a_key_in_two_parts_is_taken_once_from_the_first_by_name(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path / "one", buckets=1, parts=1)
    campaign.gather()
    expected = digests(campaign)
    again = make_campaign(tmp_path / "two", buckets=1, parts=3)
    sequences = {record["key"]: record["sequence"] for record in make_records() if record["key"]}
    publish(Store(again.store, MEAN), [sequences[key] for key in sorted(sequences)[5:50:3]])
    # keys of another campaign
    publish(Store(again.store, MEAN), [*sequences.values(), "NEVERASKEDFR", "NQRASKEDFRAAG"])
    write_completion(again, "0000", sorted(sequences), {})
    again.gather()
    assert digests(again) == expected


def test_a_campaign_without_any_vector_gives_an_empty_master(tmp_path: Path) -> None:
    campaign = make_campaign(
        tmp_path, fingerprint=replace(MEAN, long_sequences=LongSequences("skip", 1))
    )
    campaign.gather()
    with h5py.File(campaign.master) as file:
        assert file["emb"].shape == (0, 0)
    assert pq.read_table(campaign.index).num_rows == 0
    assert set(pq.read_table(campaign.records)["status"].to_pylist()) == {"skipped"}


def test_no_records_at_all(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, records=[])
    campaign.gather()
    assert pq.read_table(campaign.records).num_rows == 0


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch) -> None:
    campaign = make_campaign(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1234))
    with pytest.raises(PlmEmbedError, match=r"needs about [\d,]+ bytes, 1,234 are free; make room"):
        campaign.gather()
    assert not campaign.master.exists()


def test_the_announced_size_is_the_size(tmp_path: Path, caplog) -> None:
    campaign = make_campaign(tmp_path, fingerprint=EVERYTHING)
    caplog.set_level("INFO")
    campaign.gather()
    rows, residues = 58, sum(len(s) for s in {r["sequence"] for r in make_records() if r["key"]})
    assert campaign.master.stat().st_size > 2 * DIM * (4 * rows + 2 * residues)
    announced = int(caplog.text.split("about ")[1].split(" bytes")[0].replace(",", ""))
    assert announced > 2 * DIM * (4 * rows + 2 * residues)
