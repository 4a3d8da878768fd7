"""A bucket: its sequences, its completion record, and when it is done."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.keys import Keys, key_array, keys_sha256
from plm_embed.sequence_windows import window_counts
from plm_embed.sequences.summary import bucket_table
from plm_embed.store.blocks import StoredBucket
from plm_embed.store.parts import parts_folder
from plm_embed.store.store import Store


class Sequences(NamedTuple):
    """Sequences of a bucket, sorted by key. keys: S64 (n,); lengths: int32 (n,), in residues."""

    keys: Keys
    texts: list[str]
    lengths: NDArray[np.int32]

    def take(self, places: NDArray[np.int64]) -> "Sequences":
        """Return some of the sequences, by index in any order."""
        places = np.sort(places)
        texts = [self.texts[i] for i in places]
        return Sequences(self.keys[places], texts, self.lengths[places])


@dataclass(frozen=True)
class Bucket(StoredBucket):
    """The sequences of a bucket that have a vector, with the content of its completion record."""

    completion: Completion


def read_sequences(path: Path) -> Sequences:
    """Read a bucket file. StoreError where a key is not the SHA-256 of its sequence."""
    table = bucket_table(path, ["key", "sequence", "length"])
    lengths = table["length"].to_numpy()
    return Sequences(key_array(table["key"]), table["sequence"].to_pylist(), lengths)


def too_long(lengths: NDArray[np.int32], policy: LongSequences) -> NDArray[np.bool_]:
    """Mark the sequences that the policy for long sequences gives no vector."""
    none: NDArray[np.bool_] = window_counts(lengths, policy) == 0
    return none & (policy.policy == "skip")


def missing(sequences: Sequences, store: Store, skipped: Collection[str] = ()) -> NDArray[np.int64]:
    """Return the indices of the sequences that should have a vector and have none in the store,
    longest first.

    skipped: keys for which the device had no memory, or the model no positions.
    """
    absent = store.missing(sequences.keys)
    absent &= ~too_long(sequences.lengths, store.fingerprint.long_sequences)
    absent &= ~np.isin(sequences.keys, np.array([*skipped], dtype="S64"))
    todo = np.flatnonzero(absent)
    return todo[np.argsort(-sequences.lengths[todo], kind="stable")]


def read_bucket(path: Path, record: Path) -> Bucket:
    """Read a bucket's keys and its completion record, and check that they belong together."""
    completion = read_completion(record)
    table = bucket_table(path, ["key", "length"])
    keys, length = key_array(table["key"]), table["length"].to_numpy().astype(np.int32)
    reasons = completion.reasons
    has_vector = ~np.isin(keys, np.array([*reasons], dtype="S64"))
    # only a device can say what it has no memory for; what is too long follows from the settings
    long = keys[too_long(length, completion.fingerprint.long_sequences)].tolist()
    if (
        keys_sha256(keys) != completion.keys_sha256
        or np.count_nonzero(~has_vector) != len(reasons)
        or {key for key, reason in reasons.items() if reason == "too_long"} != set(long)
    ):
        problem = f"{record}: made for other sequences or another number of buckets"
        raise StoreError(problem, remedy=delete(record), path=record)
    fingerprint, parts = completion.fingerprint, completion.parts
    keys, length = keys[has_vector], length[has_vector]
    return Bucket(path.stem, keys, length, fingerprint, parts, record, completion)


def is_done(path: Path, record: Path, store: Path, fingerprint: Fingerprint | None = None) -> bool:
    """Tell whether a bucket is done: its completion record is whole, of its sequences and, if one
    is named, of this fingerprint; and the parts that it names are in the store.

    A job writes the record when no key is missing in those parts, which never change. Their bytes
    are compared where something is made of them.
    """
    try:
        completion = read_completion(record)
        if record.stat().st_mtime_ns < path.stat().st_mtime_ns:  # of a copy, or other sequences
            read_bucket(path, record)
        folder = parts_folder(store, completion.fingerprint)
        sizes = [(folder / part.name).stat().st_size for part in completion.parts]
    except (PlmEmbedError, OSError):
        return False
    return fingerprint in (None, completion.fingerprint) and sizes == [
        part.bytes for part in completion.parts
    ]
