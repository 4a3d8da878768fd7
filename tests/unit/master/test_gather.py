"""The master, its index and the records: complete, in order, true in their attributes, and the same
bytes whatever the buckets.
"""

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from plm_embed.accuracy import SelfTest
from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import IMPORTED_DEVICE, Fingerprint, LongSequences
from plm_embed.io import parquet as tables
from plm_embed.keys import bucket_names
from plm_embed.master import campaign as campaign_pieces
from plm_embed.master.campaign import read_campaign
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
    edit_completion,
    gathered_campaign,
    make_campaign,
    publish,
    vectors,
    write_completion,
)
from support.made_up_sequences import make_records

CROP = replace(EVERYTHING, storage_dtype="bfloat16", long_sequences=LongSequences("crop", 30))
RECORDS = make_records()
SEQUENCES = {record["key"]: record["sequence"] for record in RECORDS if record["key"]}


def digests(campaign: Campaign) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in campaign.outputs]


@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING, CROP])
def test_every_vector_lies_in_the_row_of_its_key(
    tmp_path: Path, fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_pieces, "BLOCK_BYTES", 3000)  # several blocks per bucket
    campaign = make_campaign(tmp_path, fingerprint=fingerprint)
    campaign.gather()
    dtype, names = fingerprint.storage_dtype, fingerprint.representations
    with h5py.File(campaign.master) as file:
        keys = [key.decode() for key in file["emb_keys"]]
        assert keys == sorted(SEQUENCES)
        assert file["length"][...].tolist() == [len(SEQUENCES[key]) for key in keys]
        assert file["emb"] == file[f"representations/{names[0]}"]
        for name in names:
            expected = [encode(vectors(SEQUENCES[key], fingerprint)[name], dtype) for key in keys]
            stored = encode(file["representations"][name][...], dtype)
            if name.startswith("per_residue"):
                ends = np.cumsum([len(matrix) for matrix in expected])
                assert file["offset"][...].tolist() == [0, *ends]
                np.testing.assert_array_equal(stored, np.concatenate(expected))
            else:
                np.testing.assert_array_equal(stored, np.stack(expected))


def test_bytes_do_not_depend_on_buckets_parts_repetition_or_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = gathered_campaign(tmp_path / "usual", fingerprint=CROP, out_of_memory=2)
    expected = digests(campaign)
    for buckets, parts in ((1, 1), (7, 3)):
        folder, options = tmp_path / str(buckets), {"buckets": buckets, "parts": parts}
        other = make_campaign(folder, fingerprint=CROP, out_of_memory=2, **options)
        other.gather()
        assert digests(other) == expected
    monkeypatch.setattr(tables, "_ROWS", 7)
    monkeypatch.setattr(campaign_pieces, "BLOCK_BYTES", 1)
    campaign.gather()
    assert digests(campaign) == expected


def test_checksums_of_parts_go_along_and_are_made_where_a_part_keeps_none(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=EVERYTHING)
    expected, stripped = digests(campaign), tmp_path / "part.h5"
    store = Store(campaign.store, EVERYTHING)
    for path in list(campaign.parts.glob("*.h5")):
        shutil.copy(path, stripped)
        path.unlink()
        with h5py.File(stripped, "r+") as file:
            del file[checksums.GROUP]
        store.publish(stripped)
    names = bucket_names(read_summary(campaign.sequences).buckets)
    for number, name in enumerate(names):
        mine = [key for key in sorted(SEQUENCES) if bucket_of(key, len(names)) == number]
        write_completion(campaign, name, mine, {})
    campaign.gather()
    assert digests(campaign) == expected


def test_the_index_has_a_row_for_every_record_with_a_vector(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path, out_of_memory=3)
    with h5py.File(campaign.master) as file:
        keys = [key.decode() for key in file["emb_keys"]]
    names = ["id", "cache_key", "row", "length", "source", "number", "function"]
    kept = [record for record in RECORDS if record["key"] in keys]
    kept.sort(key=lambda record: (record["key"], record["source"], record["number"]))
    index = pq.read_table(campaign.index)
    assert index.schema.names == names
    for line, record in zip(index.to_pylist(), kept, strict=True):
        record |= {"cache_key": record["key"], "row": keys.index(record["key"])}
        assert line == {name: record[name] for name in names}


def test_every_record_gets_its_fate_in_input_order(tmp_path: Path) -> None:
    fingerprint = replace(MEAN, long_sequences=LongSequences("window", 40, 10))
    campaign = gathered_campaign(tmp_path, fingerprint=fingerprint, out_of_memory=2)
    records, lost = pq.read_table(campaign.records).to_pylist(), sorted(SEQUENCES)[:2]
    for old, new in zip(RECORDS, records, strict=True):
        assert all(new[name] == old[name] for name in ("source", "number", "id"))
        status, reason, detail, events = (
            old[name] for name in ("status", "reason", "detail", "events")
        )
        if old["key"] in lost:
            status, reason, detail = "skipped", "out_of_memory", f"{old['length']} residues"
        elif status == "accepted":
            windowed = "windowed=2" if old["length"] > 40 else ""
            events = ";".join(filter(None, [events, windowed]))
            status = "embedded_with_events" if events else "embedded"
        outcome = (new["status"], new["reason"], new["detail"], new["events"] or "")
        assert outcome == (status, reason, detail, events or "")
        assert (new["row"] is None) == (status == "skipped")
    statuses = {"embedded", "embedded_with_events", "skipped"}
    assert Counter(record["status"] for record in records).keys() == statuses


def test_cropped_residues_and_skipped_lengths_are_told(tmp_path: Path) -> None:
    skip = replace(MEAN, long_sequences=LongSequences("skip", 30))
    for fingerprint in (CROP, skip):
        campaign = gathered_campaign(tmp_path / fingerprint.id, fingerprint=fingerprint)
        for record in pq.read_table(campaign.records).to_pylist():
            if record["key"] and record["length"] > 30:
                if fingerprint is CROP:
                    assert f"cropped={record['length'] - 30}" in record["events"].split(";")
                else:
                    assert (record["status"], record["reason"]) == ("skipped", "too_long")


def test_a_key_in_two_parts_is_taken_once_from_the_first_by_name(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path / "one")
    again = make_campaign(tmp_path / "two", buckets=1, parts=3)
    publish(Store(again.store, MEAN), [SEQUENCES[key] for key in sorted(SEQUENCES)[5:50:3]])
    # keys of another campaign
    publish(Store(again.store, MEAN), [*SEQUENCES.values(), "NEVERASKEDFR", "NQRASKEDFRAAG"])
    write_completion(again, "0000", sorted(SEQUENCES), {})
    again.gather()
    assert digests(again) == digests(campaign)


def test_campaigns_without_any_vector_or_record_give_an_empty_master(tmp_path: Path) -> None:
    skip = replace(MEAN, long_sequences=LongSequences("skip", 1))
    campaign = gathered_campaign(tmp_path / "skipped", fingerprint=skip)
    with h5py.File(campaign.master) as file:
        assert file["emb"].shape == (0, 0)
    assert pq.read_table(campaign.index).num_rows == 0
    assert set(pq.read_table(campaign.records)["status"].to_pylist()) == {"skipped"}
    empty = gathered_campaign(tmp_path / "empty", records=[])
    assert pq.read_table(empty.records).num_rows == 0


def test_the_announced_size_is_the_size_and_a_full_disk_is_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    campaign = make_campaign(tmp_path, fingerprint=EVERYTHING)
    caplog.set_level("INFO")
    campaign.gather()
    residues = sum(map(len, SEQUENCES.values()))
    least = 2 * DIM * (4 * len(SEQUENCES) + 2 * residues)
    announced = int(caplog.text.split("about ")[1].split(" bytes")[0].replace(",", ""))
    assert campaign.master.stat().st_size > least and announced > least
    campaign.master.unlink()
    usage = shutil.disk_usage(tmp_path)._replace(free=1234)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PlmEmbedError, match=r"needs about [\d,]+ bytes, 1,234 are free; make room"):
        campaign.gather()
    assert not campaign.master.exists()


def test_attributes_say_what_the_vectors_depend_on(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path, fingerprint=EVERYTHING)
    with h5py.File(campaign.master) as file:
        attributes = {name: getattr(v, "tolist", lambda v=v: v)() for name, v in file.attrs.items()}
    assert json.loads(attributes["fingerprint"]) == json.loads(EVERYTHING.to_json())
    expected = {
        "model_name": EVERYTHING.model,
        "layers": [2, 3],
        "pooling": ["mean", "max", "per_residue"],
        "precision": "float16",
        "compute_dtype": "float32",
        "long_sequences": "window",
        "max_length": 40,
        "window_overlap": 10,
        "devices": ["CPU"],
        "workflow_commit": "0123abc",
    }
    assert attributes | expected == attributes
    assert "mean: arithmetic mean over the sequence's own" in attributes["pooling_definition"]
    inputs = json.loads(attributes["inputs"])
    assert inputs["records"] == 90 and "buckets" not in inputs


TESTED = SelfTest(1e-6, 0.9999999, batch_invariant=True, attention="a", elementwise="b")
PROMISED = "promised by the engine"


@pytest.mark.parametrize(
    ("engine", "self_test", "expected"),
    [
        ("packed-2-varlen", TESTED, PROMISED),
        ("packed-2-varlen", None, PROMISED),  # nothing was computed
        (
            "packed-2-varlen",
            replace(TESTED, batch_invariant=False),
            f"{PROMISED}, but a self-test of this campaign saw otherwise",
        ),
        ("packed-2-math", TESTED, f"not {PROMISED}"),
    ],
)
def test_the_master_says_whether_bits_may_depend_on_the_batch_or_on_another_program(
    tmp_path: Path, engine: str, self_test: SelfTest | None, expected: str
) -> None:
    campaign = make_campaign(tmp_path, fingerprint=replace(MEAN, engine=engine))
    edit_completion(campaign, self_test=self_test)
    read = read_campaign(campaign.sequences, campaign.embedded, campaign.store)
    assert read.attributes({})["batch_invariance"] == expected
    if not expected.startswith("not"):
        read.devices.add(f"CPU, {IMPORTED_DEVICE}")  # as merged parts name them
        expected += ", except for vectors that another program computed"
    assert read.attributes({})["batch_invariance"] == expected
