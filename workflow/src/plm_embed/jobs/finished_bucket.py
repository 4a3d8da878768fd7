"""A finished bucket: its keys, its completion record, and where its vectors lie in the parts.

`gather`, which writes the master, and `validate`, which compares it with the parts, walk over
these one by one; embed looks whether one is complete.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import is_per_residue, storage_bytes
from plm_embed.jobs.completion_record import EMBED_AGAIN, Completion, read_completion
from plm_embed.keys import Keys, key_array, keys_sha256
from plm_embed.sequences.summary import bucket_table, verified
from plm_embed.store.blocks import Served
from plm_embed.store.parts import read_part
from plm_embed.store.rawio import extents
from plm_embed.store.replaced import PartInfo, current_parts
from plm_embed.store.store import store_folder
from plm_embed.windows import stored_residues, window_counts


@dataclass(frozen=True)
class Bucket:
    """The keys of one bucket that have a vector, sorted (S64 (n,)), and their lengths in residues
    (int32 (n,)).
    """

    name: str
    keys: Keys
    length: NDArray[np.int32]
    completion: Completion
    record: Path
    """Where the completion record lies."""


def load_bucket(sequences: Path, embedded: Path, name: str) -> Bucket:
    """Read a bucket's keys and its completion record, and check that they belong together."""
    return read_bucket(verified(sequences, f"buckets/{name}.parquet"), embedded / f"{name}.json")


def read_bucket(path: Path, record: Path) -> Bucket:
    """`load_bucket`, from the bucket's file and its completion record."""
    completion = read_completion(record)
    table = bucket_table(path, ["key", "length"])
    keys = key_array(table["key"])
    if keys_sha256(keys) != completion.keys_sha256:
        raise StoreError(
            f"{record}: made for other sequences or another number of buckets",
            remedy=EMBED_AGAIN,
            path=record,
        )
    length = table["length"].to_numpy().astype(np.int32)
    reasons = completion.reasons
    skips = np.array(sorted(reasons), dtype="S64")
    kept = ~np.isin(keys, skips)
    if len(keys) - kept.sum() != len(skips):
        raise StoreError(
            f"{record}: skips sequences that are not in the bucket", remedy=EMBED_AGAIN, path=record
        )
    # what is too long follows from the settings; only a device can say what it has no memory for
    policy = completion.fingerprint.long_sequences
    too_long = (window_counts(length, policy) == 0) & (policy.policy == "skip")
    said = np.array([name for name, reason in reasons.items() if reason == "too_long"], dtype="S64")
    if (np.isin(keys, said) != too_long).any():
        raise StoreError(
            f"{record}: skips other sequences as too long than are too long",
            remedy=EMBED_AGAIN,
            path=record,
        )
    return Bucket(path.stem, keys[kept], length[kept], completion, record)


def named_parts(bucket: Bucket, store: Path) -> tuple[PartInfo, ...]:
    """The parts that a bucket's completion record names, or that replaced them, by name.

    StoreError when one is missing or has another size.
    """
    folder = store_folder(store, bucket.completion.fingerprint) / "parts"
    parts = current_parts(bucket.completion.parts, folder.parent)
    for part in parts:
        path = folder / part.name
        if not path.is_file():
            raise StoreError(
                f"{path}: missing, but {bucket.record} names it", remedy=EMBED_AGAIN, path=path
            )
        if path.stat().st_size != part.bytes:
            raise StoreError(
                f"{path}: has {path.stat().st_size:,} bytes, {bucket.record} says {part.bytes:,}",
                remedy=EMBED_AGAIN,
                path=path,
            )
    return parts


def serve(bucket: Bucket, store: Path) -> Served:
    """Find every vector of a bucket: in the first part, by name, that holds its key."""
    folder = store_folder(store, bucket.completion.fingerprint) / "parts"
    parts = tuple(folder / part.name for part in named_parts(bucket, store))
    count, fingerprint = len(bucket.keys), bucket.completion.fingerprint
    which, row = np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.int64)
    windows, residues = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int64)
    flat, places = np.zeros(count, dtype=np.int64), []
    dims: dict[str, int] = {}
    for number, path in enumerate(parts):
        with read_part(path) as part:
            part.check(fingerprint)
            if (dims := dims or part.dims) != part.dims:
                raise StoreError(
                    f"{path}: its vectors have dimensions {part.dims}, other parts {dims}",
                    remedy=f"remove it and {EMBED_AGAIN}",
                    path=path,
                )
            places.append({name: extents(part.vectors(name)) for name in part.names})
            at = part.locate(bucket.keys)
            new = (which < 0) & (at >= 0)
            rows = at[new]
            which[new], row[new], windows[new] = number, rows, part.column_at("windows", rows)
            wrong = part.column_at("length", rows) != bucket.length[new]
            if any(map(is_per_residue, part.names)):
                flat[new], residues[new] = part.column_at("offset", rows), part.residues_at(rows)
                wrong |= residues[new] != stored_residues(
                    bucket.length[new], fingerprint.long_sequences
                )
            if wrong.any():
                key = bucket.keys[new][wrong][0].decode()
                raise StoreError(
                    f"{path}: says another length for {key} than bucket {bucket.name}",
                    remedy=f"remove the part and {EMBED_AGAIN}",
                    path=path,
                )
    if (which < 0).any():
        key = bucket.keys[which < 0][0].decode()
        raise StoreError(
            f"{bucket.record}: {(which < 0).sum()} sequences are in none of its parts "
            f"(first: {key})",
            remedy=EMBED_AGAIN,
            path=bucket.record,
        )
    width = storage_bytes(fingerprint.storage_dtype)
    return Served(parts, tuple(places), which, row, windows, residues, flat, dims, width)
