"""A bucket: its sequences, its completion record, and when it is done.

A bucket is done when its completion record is of its sequences, and the store holds each of them
but those that the record skips. A job writes the record when that is so, and a published part never
changes. So it is enough to look at the record (`is_recorded`) where nothing is made of the vectors;
gather and validate find each key in the parts that the record names, and compare their bytes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import LongSequences
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.keys import Keys, key_array, keys_sha256
from plm_embed.sequence_windows import window_counts
from plm_embed.sequences.summary import bucket_table, verified
from plm_embed.store.blocks import Wanted
from plm_embed.store.store import Store


class Sequences(NamedTuple):
    """Sequences of a bucket, sorted by key. keys: S64 (n,); lengths: int32 (n,), in residues."""

    keys: Keys
    texts: list[str]
    lengths: NDArray[np.int32]


@dataclass(frozen=True)
class Bucket(Wanted):
    """The keys of a bucket that have a vector, and its completion record."""

    completion: Completion


def read_sequences(path: Path) -> Sequences:
    """Read a bucket file. StoreError where a key is not the SHA-256 of its sequence."""
    table = bucket_table(path, ["key", "sequence"])
    texts = table["sequence"].to_pylist()
    return Sequences(key_array(table["key"]), texts, np.array([*map(len, texts)], np.int32))


def too_long(lengths: NDArray[np.int32], policy: LongSequences) -> NDArray[np.bool_]:
    """Mark the sequences that the policy for long sequences gives no vector."""
    none: NDArray[np.bool_] = window_counts(lengths, policy) == 0
    return none & (policy.policy == "skip")


def missing(sequences: Sequences, store: Store, skipped: Collection[str] = ()) -> NDArray[np.int64]:
    """Return the indices of the sequences that should have a vector and have none in the store.

    skipped: keys for which the device had no memory, or the model no positions.
    """
    absent = store.missing(sequences.keys)
    absent &= ~too_long(sequences.lengths, store.fingerprint.long_sequences)
    return np.flatnonzero(absent & ~np.isin(sequences.keys, np.array([*skipped], dtype="S64")))


def load_bucket(sequences: Path, embedded: Path, name: str) -> Bucket:
    """Read a bucket's keys and its completion record, and check that they belong together."""
    return read_bucket(verified(sequences, f"buckets/{name}.parquet"), embedded / f"{name}.json")


def read_bucket(path: Path, record: Path) -> Bucket:
    """`load_bucket`, from the bucket's file and its completion record."""
    completion, again = read_completion(record), delete(record)
    table = bucket_table(path, ["key", "length"])
    keys, length = key_array(table["key"]), table["length"].to_numpy().astype(np.int32)
    skips = np.array([*completion.reasons], dtype="S64")
    kept = ~np.isin(keys, skips)
    # what is too long follows from the settings; only a device can say what it has no memory for
    long = [key for key, reason in completion.reasons.items() if reason == "too_long"]
    expected = too_long(length, completion.fingerprint.long_sequences)
    wrong = ""
    if keys_sha256(keys) != completion.keys_sha256:
        wrong = "made for other sequences or another number of buckets"
    elif len(keys) - kept.sum() != len(skips):
        wrong = "skips sequences that are not in the bucket"
    elif (np.isin(keys, np.array(long, dtype="S64")) != expected).any():
        wrong = "skips other sequences as too long than are too long"
    if wrong:
        raise StoreError(f"{record}: {wrong}", remedy=again, path=record)
    fingerprint, parts = completion.fingerprint, completion.parts
    return Bucket(
        path.stem, keys[kept], length[kept], fingerprint, parts, record, again, completion
    )


def is_done(bucket: Path, record: Path, store: Store) -> bool:
    """Tell whether a bucket is done, with the fingerprint of the store.

    A sequence that found no device memory counts as missing: this device may have more.
    """
    try:
        recorded = read_bucket(bucket, record)
    except (PlmEmbedError, FileNotFoundError):
        return False
    return (
        recorded.fingerprint == store.fingerprint
        and "out_of_memory" not in recorded.completion.reasons.values()
        and not store.missing(recorded.keys).any()
        and set(recorded.parts) <= set(store.covering(recorded.keys))
    )


def is_recorded(bucket: Path, record: Path) -> bool:
    """Tell whether a bucket is done by its completion record alone."""
    try:
        if record.stat().st_mtime_ns >= bucket.stat().st_mtime_ns:
            return True
        # of a copy, or of other sequences
        keys = key_array(bucket_table(bucket, ["key"])["key"])
        return keys_sha256(keys) == read_completion(record).keys_sha256
    except (PlmEmbedError, OSError, ValueError):
        return False
