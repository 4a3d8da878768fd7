"""A finished campaign, bucket by bucket: its keys, its completion records, and its vectors in key order from the parts.

Both `gather`, which writes the master, and `validate`, which compares it with the parts, walk over this. Nothing here
holds more than one bucket's keys and one block of vectors at a time.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed import buckets
from plm_embed.deduplicated import read_summary, verified
from plm_embed.errors import UserError
from plm_embed.fingerprint import Fingerprint
from plm_embed.hdf5 import Array, flat_rows
from plm_embed.parts import Keys, is_per_residue, read_part
from plm_embed.rawio import Extents, Scatter, extents, read_scattered
from plm_embed.sealed import read_sealed
from plm_embed.store import PartInfo, current_parts, keys_sha256, store_folder
from plm_embed.tables import bucket_table
from plm_embed.windows import window_counts

EMBED_AGAIN = "run `snakemake --forcerun embed` (only what the store lacks is computed)"

BLOCK_BYTES = 64 << 20
"""Vectors are moved in blocks of at most about this size, or of one sequence if that is larger."""


@dataclass(frozen=True)
class Completion:
    """What is used of a completion record; see `read_completion`. skipped: reason by key.

    batch_dependent: whether the job's self-test saw bits that depend on the batch.
    """

    path: Path
    keys_sha256: str
    fingerprint: Fingerprint
    parts: tuple[PartInfo, ...]
    skipped: dict[bytes, str]
    devices: tuple[str, ...]
    versions: dict[str, str]
    batch_dependent: bool


@dataclass(frozen=True)
class Bucket:
    """The keys of one bucket that have a vector, sorted (S64 (n,)), and their lengths in residues (int32 (n,))."""

    name: str
    keys: Keys
    length: NDArray[np.int32]
    completion: Completion


@dataclass(frozen=True)
class Served:
    """Where the vectors of a bucket lie: for each of its n keys the part (index into `parts`) and the row in it.

    windows int32 (n,) as stored; residues and flat int64 (n,): number of rows in the per-residue data sets and the
    first of them (0 if there are none); dims: D by representation; width: bytes per number; places: for each part and
    representation where its rows lie in the file, None where HDF5 has to read them.
    """

    parts: tuple[Path, ...]
    places: tuple[dict[str, Extents | None], ...]
    part: NDArray[np.int32]
    row: NDArray[np.int64]
    windows: NDArray[np.int32]
    residues: NDArray[np.int64]
    flat: NDArray[np.int64]
    dims: dict[str, int]
    width: int


@dataclass(frozen=True)
class Block:
    """Stored bits of keys `start` to `stop` of a bucket by representation: (k, D), or flat (r, D) when per residue."""

    start: int
    stop: int
    bits: dict[str, Array]


def bucket_names(sequences: Path) -> list[str]:
    """Names of the buckets in key order. Files of an earlier, larger number of buckets may lie beside them."""
    return buckets.bucket_names(read_summary(sequences)["buckets"])


def key_array(column: pa.ChunkedArray) -> Keys:
    """A string column of keys as S64; null becomes 64 undefined bytes."""
    try:
        whole = column.cast(pa.binary()).cast(pa.binary(64)).combine_chunks()
    except pa.ArrowInvalid as error:
        raise UserError(f"a key is not 64 characters long: {error}") from None
    return np.frombuffer(whole.buffers()[1] or b"", dtype="S64", count=len(whole), offset=64 * whole.offset)


def read_completion(path: Path) -> Completion:
    """Read a bucket's completion record. UserError when it is absent, damaged or not one."""
    record = read_sealed(path, "a completion record", EMBED_AGAIN)
    try:
        return Completion(
            path=path,
            keys_sha256=record["keys_sha256"],
            fingerprint=Fingerprint.from_json(json.dumps(record["fingerprint"])),
            parts=tuple(sorted((PartInfo(**part) for part in record["parts"]), key=lambda part: part.name)),
            skipped={skip["key"].encode(): skip["reason"] for skip in record["skipped"]},
            devices=(record["worker"]["device"], *record.get("reused_devices", ())),
            versions=record["versions"],
            batch_dependent=not (record.get("self_test") or {}).get("batch_invariant", True),
        )
    except (ValueError, KeyError, TypeError) as error:  # sealed, but of another version
        raise UserError(f"{path}: not a completion record of this version ({error!r}); {EMBED_AGAIN}") from None


def load_bucket(sequences: Path, embedded: Path, name: str) -> Bucket:
    """Read a bucket's keys and its completion record, and check that they belong together."""
    return read_bucket(verified(sequences, f"buckets/{name}.parquet"), embedded / f"{name}.json")


def read_bucket(path: Path, record: Path) -> Bucket:
    """`load_bucket`, from the bucket's file and its completion record."""
    completion = read_completion(record)
    table = bucket_table(path, ["key", "length"])
    keys = key_array(table["key"])
    if keys_sha256(keys) != completion.keys_sha256:
        raise UserError(f"{record}: made for other sequences or another number of buckets; {EMBED_AGAIN}")
    length = table["length"].to_numpy().astype(np.int32)
    skips = np.array(sorted(completion.skipped), dtype="S64")
    kept = ~np.isin(keys, skips)
    if len(keys) - kept.sum() != len(skips):
        raise UserError(f"{record}: skips sequences that are not in the bucket; {EMBED_AGAIN}")
    # what is too long follows from the settings; only a device can say what it has no memory for
    policy = completion.fingerprint.long_sequences
    too_long = (window_counts(length, policy) == 0) & (policy.policy == "skip")
    said = np.array([name for name, reason in completion.skipped.items() if reason == "too_long"], dtype="S64")
    if (np.isin(keys, said) != too_long).any():
        raise UserError(f"{record}: skips other sequences as too long than are too long; {EMBED_AGAIN}")
    return Bucket(path.stem, keys[kept], length[kept], completion)


def named_parts(completion: Completion, store: Path) -> tuple[PartInfo, ...]:
    """The parts that a completion record names, or that replaced them, by name.

    UserError when one is missing or has another size.
    """
    folder = store_folder(store, completion.fingerprint) / "parts"
    parts = current_parts(completion.parts, folder.parent)
    for part in parts:
        path = folder / part.name
        if not path.is_file():
            raise UserError(f"{path}: missing, but {completion.path} names it; {EMBED_AGAIN}")
        if path.stat().st_size != part.bytes:
            raise UserError(
                f"{path}: has {path.stat().st_size:,} bytes, {completion.path} says {part.bytes:,}; {EMBED_AGAIN}"
            )
    return parts


def stored_residues(length: NDArray[np.signedinteger[Any]], fingerprint: Fingerprint) -> NDArray[np.int64]:
    """Rows that a sequence of each length has in per-residue data sets: one per residue that was not cropped."""
    policy = fingerprint.long_sequences
    limit = policy.max_residues if policy.policy == "crop" and policy.max_residues else np.iinfo(np.int32).max
    rows: NDArray[np.int64] = np.minimum(length, limit).astype(np.int64)
    return rows


def serve(bucket: Bucket, store: Path) -> Served:
    """Find every vector of a bucket: in the first part, by name, that holds its key."""
    folder = store_folder(store, bucket.completion.fingerprint) / "parts"
    parts = tuple(folder / part.name for part in named_parts(bucket.completion, store))
    count, fingerprint = len(bucket.keys), bucket.completion.fingerprint
    which, row = np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.int64)
    windows, residues = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int64)
    flat, places = np.zeros(count, dtype=np.int64), []
    dims: dict[str, int] = {}
    for number, path in enumerate(parts):
        with read_part(path) as part:
            part.check(fingerprint)
            if (dims := dims or part.dims) != part.dims:
                raise UserError(
                    f"{path}: its vectors have dimensions {part.dims}, other parts {dims}; remove it and {EMBED_AGAIN}"
                )
            places.append({name: extents(part.vectors(name)) for name in part.names})
            at = part.locate(bucket.keys)
            new = (which < 0) & (at >= 0)
            rows = at[new]
            which[new], row[new], windows[new] = number, rows, part.column_at("windows", rows)
            wrong = part.column_at("length", rows) != bucket.length[new]
            if any(map(is_per_residue, part.names)):
                flat[new], residues[new] = part.column_at("offset", rows), part.residues_at(rows)
                wrong |= residues[new] != stored_residues(bucket.length[new], fingerprint)
            if wrong.any():
                key = bucket.keys[new][wrong][0].decode()
                raise UserError(
                    f"{path}: says another length for {key} than bucket {bucket.name}; "
                    f"remove the part and {EMBED_AGAIN}"
                )
    if (which < 0).any():
        key = bucket.keys[which < 0][0].decode()
        raise UserError(
            f"{bucket.completion.path}: {(which < 0).sum()} sequences are in none of its parts (first: {key}); "
            f"{EMBED_AGAIN}"
        )
    width = 4 if fingerprint.storage_dtype == "float32" else 2
    return Served(parts, tuple(places), which, row, windows, residues, flat, dims, width)


class Memory:
    """Room for two blocks, one to be read while the other is in use. New pages cost as much as filling them."""

    def __init__(self) -> None:
        self._held: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
        self._turn = 0

    def turn(self) -> None:
        self._turn = 1 - self._turn

    def take(self, name: str, rows: int, dim: int, width: int) -> Array:
        """Undefined bits (rows, dim), which stay until the turn after the next."""
        held = self._held[self._turn]
        if name not in held or held[name].size < rows * dim:
            held[name] = np.empty(rows * dim, dtype=f"<u{width}")
        return held[name][: rows * dim].reshape(rows, dim)


def blocks(served: Served, memory: Memory | None = None) -> Iterator[Block]:
    """The vectors of a bucket in key order, block by block.

    The bits of a block stay until the block after the next is read, also over buckets that share `memory`.
    """
    memory = memory or Memory()
    if not served.dims:
        return
    widest = 4  # bytes per number
    per_key = sum(widest * dim * (served.residues if is_per_residue(name) else 1) for name, dim in served.dims.items())
    number = np.cumsum(np.broadcast_to(per_key, served.row.shape)) // BLOCK_BYTES
    edges = np.flatnonzero(np.diff(number, prepend=-1, append=np.iinfo(np.int64).max)).tolist()
    for start, stop in pairwise(edges):
        memory.turn()
        yield Block(start, stop, _read_block(served, start, stop, memory))


def _read_block(served: Served, start: int, stop: int, memory: Memory) -> dict[str, Array]:
    which, row = served.part[start:stop], served.row[start:stop]
    bits: dict[str, Array] = {}
    for name, dim in served.dims.items():
        counts = served.residues[start:stop] if is_per_residue(name) else np.ones(stop - start, dtype=np.int64)
        starts = served.flat[start:stop] if is_per_residue(name) else row
        at = np.cumsum(counts) - counts
        size = int(counts.sum())
        bits[name] = memory.take(name, size, dim, served.width)
        for number in np.flatnonzero(np.bincount(which)).tolist():
            mine = np.flatnonzero(which == number)
            where = served.places[number][name]
            if where is not None:
                wanted = Scatter(starts[mine], counts[mine], at[mine])
                read_scattered(served.parts[number], where, wanted, bits[name])
            else:
                with read_part(served.parts[number]) as part:
                    to = flat_rows(np.append(at, size), mine) if is_per_residue(name) else mine
                    bits[name][to] = part.bits(name, row[mine])
    return bits
