"""What earlier campaigns hold is never computed again: proven by the counts of real embed runs."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import Pooling
from plm_embed.inference.settings import Settings
from plm_embed.jobs.completion_record import (
    campaign_records,
    completion_records,
    savings,
    write_completion,
)
from plm_embed.keys import key
from plm_embed.store import reuse
from plm_embed.store.hdf5 import encode
from plm_embed.store.reuse import Reuse, check_sources
from plm_embed.store.store import Store
from support.buckets import SEQUENCES, bucket_of, write_bucket
from support.campaigns import EVERYTHING, MEAN, completion, gathered_campaign, part_rows
from support.embedded import Embedder
from support.made_up_sequences import make_records

Counts = tuple[int, int, int]


def embed(
    folder: Path, prepared: Path, sequences: list[str], buckets: int = 1, **settings: Any
) -> Counts:
    """Embed in `folder`, with its store; returns how many were computed, found and reused."""
    counts = np.zeros(3, dtype=int)
    embedder = Embedder(prepared, folder / "store", Settings(scratch="", **settings))
    for number in range(buckets):
        inside = [sequence for sequence in sequences if bucket_of(key(sequence), buckets) == number]
        folder.mkdir(exist_ok=True)
        bucket = write_bucket(folder, inside, f"{number:04d}")
        record = embedder.embed(bucket, folder / "embedded" / f"{number:04d}.json")
        assert record.unique == len(inside)
        counts += [record.computed, record.found, record.reused]
    computed, found, reused = counts.tolist()
    return computed, found, reused


def test_only_missing_keys_are_computed(tmp_path: Path, prepared: Path) -> None:
    first = tmp_path / "first"
    assert embed(first, prepared, SEQUENCES[:20], buckets=3) == (20, 0, 0)
    # another N, a removed input, a grown input
    assert embed(first, prepared, SEQUENCES[:20], buckets=2) == (0, 20, 0)
    assert embed(first, prepared, SEQUENCES[5:20]) == (0, 15, 0)
    assert embed(first, prepared, SEQUENCES[:30], buckets=5) == (10, 20, 0)
    # deleted results with the store kept
    shutil.rmtree(first / "embedded")
    assert embed(first, prepared, SEQUENCES[:30]) == (0, 30, 0)
    # another machine, to which the store was copied
    second = tmp_path / "second"
    shutil.copytree(first / "store", second / "store")
    assert embed(second, prepared, SEQUENCES[:32]) == (2, 30, 0)
    # another campaign that names the store
    third = tmp_path / "third"
    assert embed(third, prepared, SEQUENCES[10:40], buckets=2, reuse=(first / "store",)) == (
        10,
        0,
        20,
    )
    assert embed(third, prepared, SEQUENCES[10:40], reuse=(first / "store",)) == (0, 30, 0)
    shutil.rmtree(first)
    assert embed(third, prepared, SEQUENCES[10:40]) == (0, 30, 0)
    # an empty bucket, and one that is known as a whole
    fourth = tmp_path / "fourth"
    assert embed(fourth, prepared, [], reuse=(third / "store",)) == (0, 0, 0)
    assert embed(fourth, prepared, SEQUENCES[20:30], reuse=(second / "store", third / "store")) == (
        0,
        0,
        10,
    )
    assert savings(completion_records(fourth / "embedded")).reused == 10


def test_savings_are_told_in_words() -> None:
    assert str(savings([])) == ""
    record = completion(found=2, reused=1000, spared_tokens=7_200_000, tokens_per_second=1000.0)
    words = (
        "2 in the store when their buckets last ran, 1,000 taken from earlier results "
        "(about 2 h 0 min of a device)"
    )
    assert str(savings([record, completion()])) == words


def test_what_earlier_settings_left_does_not_count(tmp_path: Path) -> None:
    def leave(bucket: str, ended: str, pooling: Pooling) -> None:
        fingerprint = replace(MEAN, pooling=(pooling,))
        record = completion(bucket=bucket, ended=ended, fingerprint=fingerprint, found=1)
        write_completion(tmp_path / f"{bucket}.json", record)

    assert campaign_records(tmp_path, 2) == []
    leave("0000", "2026-01-02", "mean")
    leave("0001", "2026-01-01", "max")
    leave("0002", "2026-01-03", "mean")  # of more buckets than there are now
    assert [record.bucket for record in campaign_records(tmp_path, 2)] == ["0000"]
    assert [record.bucket for record in campaign_records(tmp_path, 3)] == ["0000", "0002"]


@pytest.mark.parametrize(
    ("fingerprint", "at_once"),
    [
        (MEAN, 600),
        (EVERYTHING, 30_000),
        (replace(EVERYTHING, storage_dtype="bfloat16"), 30_000),
    ],
)
@pytest.mark.parametrize("source", ["store", "part of a store", "master"])
def test_vectors_are_copied_bit_for_bit(
    tmp_path: Path, fingerprint, at_once, source, monkeypatch
) -> None:
    monkeypatch.setattr(reuse, "COPY_BYTES", at_once)
    earlier = gathered_campaign(tmp_path / "earlier", fingerprint=fingerprint)
    sources = {
        "store": earlier.store,
        "part of a store": earlier.parts.parent,
        "master": earlier.master,
    }
    sequences = sorted({record["sequence"] for record in make_records() if record["key"]}, key=key)
    wanted = sequences[3:40]
    keys = np.array([key(sequence) for sequence in wanted], dtype="S64")
    lengths = np.array([len(sequence) for sequence in wanted], dtype=np.int32)
    store = Store(tmp_path / "new", fingerprint)
    copied = Reuse([sources[source]], fingerprint).copy(keys, lengths, store, tmp_path)
    assert (copied.total, copied.devices) == (37, {"CPU"})
    assert not store.missing(keys).any()
    rows = part_rows(wanted, fingerprint)
    seen = 0
    parts = list(store.parts("0" * 64, "f" * 64))
    assert len(parts) > 1
    for path in parts:
        with h5py.File(path) as file:
            at = np.searchsorted(keys, file["emb_keys"][...])
            seen += len(at)
            for name in fingerprint.representations:
                expected = [np.atleast_2d(rows.representations[name][row]) for row in at]
                found = encode(file["representations"][name][...], fingerprint.storage_dtype)
                np.testing.assert_array_equal(
                    found, encode(np.concatenate(expected), fingerprint.storage_dtype)
                )
    assert seen == 37


def test_another_fingerprint_is_refused_before_anything_is_computed(
    tmp_path: Path, prepared: Path
) -> None:
    embed(tmp_path / "first", prepared, SEQUENCES[:3])
    words = r"other settings: pooling is \['mean'\] there, \['max'\] here"
    with pytest.raises(PlmEmbedError, match=words):
        embed(
            tmp_path / "second",
            prepared,
            SEQUENCES[:3],
            reuse=(tmp_path / "first/store",),
            pooling=("max",),
        )
    assert not list((tmp_path / "second").rglob("*.h5"))
    # no setting computes what an earlier version did
    known = {"engine": "packed-0"}
    with pytest.raises(PlmEmbedError, match=r"(?s)device or version: engine is .*`reuse`$"):
        check_sources([tmp_path / "first/store"], known)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_sources_that_are_not_whole_are_named(tmp_path: Path) -> None:
    earlier = gathered_campaign(tmp_path / "earlier", buckets=1, parts=1)
    keys = np.sort(
        np.array([key(s) for s in {r["sequence"] for r in make_records() if r["key"]}], dtype="S64")
    )
    store = Store(tmp_path / "new", MEAN)

    def copy(path: Path, shift: int = 0) -> None:
        lengths = {record["key"]: record["length"] for record in make_records()}
        found = np.array([lengths[name.decode()] + shift for name in keys], dtype=np.int32)
        Reuse([path], MEAN).copy(keys, found, store, tmp_path)

    with pytest.raises(PlmEmbedError, match="says other lengths"):
        copy(earlier.master, shift=1)
    with h5py.File(earlier.master, "r+") as file:
        file["emb"][7, 3] = np.nan
    with pytest.raises(PlmEmbedError, match=r"damaged \(row 7 of .* has changed"):
        copy(earlier.master)
    with h5py.File(earlier.master, "r+") as file:
        del file["checksums"]  # as masters of earlier versions
    with pytest.raises(PlmEmbedError, match="holds NaN or infinity"):
        copy(earlier.master)
    cut(earlier.master)
    with pytest.raises(PlmEmbedError, match="not a whole master or part with a fingerprint"):
        copy(earlier.master)
    flip(next(earlier.parts.iterdir()))
    with pytest.raises(PlmEmbedError, match="its bytes are not those that were written"):
        copy(earlier.store)
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "empty", "neither a master .h5 nor a store"),
        (tmp_path / "absent", "not found"),
    ):
        with pytest.raises(PlmEmbedError, match=words):
            copy(path)
    (earlier.parts.parent / "fingerprint.json").write_text("{}")
    with pytest.raises(PlmEmbedError, match="not a fingerprint"):
        copy(earlier.store)
    assert store.missing(keys).all()
