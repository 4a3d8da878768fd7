"""A finished bucket: its keys and its completion record, which names the parts with its vectors.

`gather`, which writes the master, and `validate`, which compares it with the parts, walk over
these one by one; embed asks whether one is finished before it computes anything.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plm_embed.errors import PlmEmbedError, StoreError, embed_again
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.keys import key_array, keys_sha256
from plm_embed.sequence_windows import window_counts
from plm_embed.sequences.summary import bucket_table, verified
from plm_embed.store.blocks import Wanted, locate
from plm_embed.store.replaced import current_parts
from plm_embed.store.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bucket(Wanted):
    """The keys of one bucket that have a vector, and what its completion record says."""

    completion: Completion


def load_bucket(sequences: Path, embedded: Path, name: str) -> Bucket:
    """Read a bucket's keys and its completion record, and check that they belong together."""
    return read_bucket(verified(sequences, f"buckets/{name}.parquet"), embedded / f"{name}.json")


def read_bucket(path: Path, record: Path) -> Bucket:
    """`load_bucket`, from the bucket's file and its completion record."""
    completion, again = read_completion(record), embed_again(record.parent.parent)
    table = bucket_table(path, ["key", "length"])
    keys = key_array(table["key"])
    if keys_sha256(keys) != completion.keys_sha256:
        raise StoreError(
            f"{record}: made for other sequences or another number of buckets",
            remedy=again,
            path=record,
        )
    length = table["length"].to_numpy().astype(np.int32)
    reasons = completion.reasons
    skips = np.array(sorted(reasons), dtype="S64")
    kept = ~np.isin(keys, skips)
    if len(keys) - kept.sum() != len(skips):
        raise StoreError(
            f"{record}: skips sequences that are not in the bucket", remedy=again, path=record
        )
    # what is too long follows from the settings; only a device can say what it has no memory for
    policy = completion.fingerprint.long_sequences
    too_long = (window_counts(length, policy) == 0) & (policy.policy == "skip")
    said = np.array([name for name, reason in reasons.items() if reason == "too_long"], dtype="S64")
    if (np.isin(keys, said) != too_long).any():
        raise StoreError(
            f"{record}: skips other sequences as too long than are too long",
            remedy=again,
            path=record,
        )
    return Bucket(
        path.stem,
        keys[kept],
        length[kept],
        completion.fingerprint,
        completion.parts,
        record,
        again,
        completion,
    )


def is_finished(bucket: Path, record: Path, store: Store) -> bool:
    """Whether `record` is a completion record of this very bucket for the fingerprint of the store,
    whose parts are whole and hold every sequence of the bucket but those that are too long.
    """
    try:
        whole = read_bucket(bucket, record)
        said = whole.completion
        if said.fingerprint != store.fingerprint or "out_of_memory" in said.reasons.values():
            return False  # this device may have more memory
        parts = current_parts(said.parts, store.folder)
        if store.infos([store.parts_folder / part.name for part in parts]) != list(parts):
            return False
        locate(whole, store.folder.parent)
    except (PlmEmbedError, FileNotFoundError) as error:
        if not record.exists():
            log.info("bucket %s: nothing computed yet", bucket.stem)
            return False
        log.info("bucket %s is not finished: %s", bucket.stem, error)
        return False
    return True
