"""Vectors of a bucket in key order: where they lie in the parts, and read block by block."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint, has_matrix, storage_bytes
from plm_embed.keys import Keys
from plm_embed.sequence_windows import stored_residues
from plm_embed.store.checksums import Sums
from plm_embed.store.hdf5 import Array, flat_rows
from plm_embed.store.parts import read_part
from plm_embed.store.rawio import Extents, Scatter, extents, read_scattered
from plm_embed.store.replaced import PartInfo, current_parts
from plm_embed.store.store import store_folder

BLOCK_BYTES = 64 << 20
"""Vectors are moved in blocks of at most about this size, or of one sequence if that is larger."""


@dataclass(frozen=True)
class Wanted:
    """Sequences of bucket `name` that have a vector: their keys, sorted (S64 (n,)), and their
    lengths in residues (int32 (n,)).
    """

    name: str
    keys: Keys
    length: NDArray[np.int32]
    fingerprint: Fingerprint
    parts: Sequence[PartInfo]
    """Those that held the vectors when they were computed."""
    record: Path
    """The completion record, which names the parts."""
    remedy: str
    """What a message about a wrong part tells to do."""


@dataclass(frozen=True)
class Located:
    """Where the vectors of a bucket lie: for each of its n keys the part (index into `parts`) and
    the row in it.

    windows int32 (n,) as stored; residues and flat int64 (n,): number of rows in the per-residue
    datasets and the first of them (0 if there are none); dims: D by representation; width: bytes
    per number; places: for each part and representation where its rows lie in the file, None where
    HDF5 has to read them; sums: checksums (n,) by representation, where all parts keep them.
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
    sums: Mapping[str, Sums] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Stored bits of keys `start` to `stop` of a bucket by representation: (k, D), or flat (r, D)
    when per residue.
    """

    start: int
    stop: int
    bits: dict[str, Array]


class Memory:
    """Room for two blocks, one to be read while the other is in use. New pages cost as much as
    filling them.
    """

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


def named_parts(wanted: Wanted, store: Path) -> tuple[PartInfo, ...]:
    """The parts that a completion record names, or that replaced them, by name.

    StoreError when one is missing or has another size.
    """
    folder = store_folder(store, wanted.fingerprint) / "parts"
    parts = current_parts(wanted.parts, folder.parent)
    for part in parts:
        path = folder / part.name
        if not path.is_file():
            raise StoreError(
                f"{path}: missing, but {wanted.record} names it", remedy=wanted.remedy, path=path
            )
        if path.stat().st_size != part.bytes:
            raise StoreError(
                f"{path}: has {path.stat().st_size:,} bytes, {wanted.record} says {part.bytes:,}",
                remedy=wanted.remedy,
                path=path,
            )
    return parts


def locate(wanted: Wanted, store: Path) -> Located:
    """Find every vector that is wanted: in the first part, by name, that holds its key."""
    folder = store_folder(store, wanted.fingerprint) / "parts"
    parts = tuple(folder / part.name for part in named_parts(wanted, store))
    count, fingerprint = len(wanted.keys), wanted.fingerprint
    which, row = np.full(count, -1, dtype=np.int32), np.zeros(count, dtype=np.int64)
    windows, residues = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int64)
    flat, places = np.zeros(count, dtype=np.int64), []
    dims: dict[str, int] = {}
    sums = {name: np.zeros(count, dtype=np.uint64) for name in fingerprint.representations}
    for number, path in enumerate(parts):
        with read_part(path) as part:
            part.check(fingerprint)
            if (dims := dims or part.dims) != part.dims:
                raise StoreError(
                    f"{path}: its vectors have dimensions {part.dims}, other parts {dims}",
                    remedy=wanted.remedy,
                    path=path,
                )
            places.append({name: extents(part.vectors(name)) for name in part.names})
            at = part.locate(wanted.keys)
            new = np.flatnonzero((which < 0) & (at >= 0))
            rows = at[new]
            which[new], row[new], windows[new] = number, rows, part.column_at("windows", rows)
            wrong = part.column_at("length", rows) != wanted.length[new]
            for name in tuple(sums):
                if (kept := part.sums_at(name, rows)) is None:
                    del sums[name]
                else:
                    sums[name][new] = kept
            if any(map(has_matrix, part.names)):
                flat[new], residues[new] = part.column_at("offset", rows), part.residues_at(rows)
                if "per_residue" in fingerprint.pooling:  # else letters do not tell the rows
                    wrong |= residues[new] != stored_residues(
                        wanted.length[new], fingerprint.long_sequences
                    )
            if wrong.any():
                key = wanted.keys[new][wrong][0].decode()
                raise StoreError(
                    f"{path}: says another length for {key} than bucket {wanted.name}",
                    remedy=wanted.remedy,
                    path=path,
                )
    if (which < 0).any():
        key = wanted.keys[which < 0][0].decode()
        raise StoreError(
            f"{wanted.record}: {(which < 0).sum()} sequences are in none of its parts "
            f"(first: {key})",
            remedy=wanted.remedy,
            path=wanted.record,
        )
    width = storage_bytes(fingerprint.storage_dtype)
    return Located(parts, tuple(places), which, row, windows, residues, flat, dims, width, sums)


def blocks(located: Located, memory: Memory | None = None) -> Iterator[Block]:
    """The vectors of a bucket in key order, block by block.

    The bits of a block stay until the block after the next is read, also over buckets that share
    `memory`.
    """
    memory = memory or Memory()
    if not located.dims:
        return
    widest = 4  # bytes per number
    per_key = sum(
        widest * dim * (located.residues if has_matrix(name) else 1)
        for name, dim in located.dims.items()
    )
    number = np.cumsum(np.broadcast_to(per_key, located.row.shape)) // BLOCK_BYTES
    edges = np.flatnonzero(np.diff(number, prepend=-1, append=np.iinfo(np.int64).max)).tolist()
    for start, stop in pairwise(edges):
        bits = _read_block(located, start, stop, memory)
        memory.turn()  # not after a failure: whoever reads anew may still use the block before
        yield Block(start, stop, bits)


def _read_block(located: Located, start: int, stop: int, memory: Memory) -> dict[str, Array]:
    which, row = located.part[start:stop], located.row[start:stop]
    bits: dict[str, Array] = {}
    for name, dim in located.dims.items():
        counts = (
            located.residues[start:stop]
            if has_matrix(name)
            else np.ones(stop - start, dtype=np.int64)
        )
        starts = located.flat[start:stop] if has_matrix(name) else row
        at = np.cumsum(counts) - counts
        size = int(counts.sum())
        bits[name] = memory.take(name, size, dim, located.width)
        for number in np.flatnonzero(np.bincount(which)).tolist():
            mine = np.flatnonzero(which == number)
            where = located.places[number][name]
            if where is not None:
                wanted = Scatter(starts[mine], counts[mine], at[mine])
                read_scattered(located.parts[number], where, wanted, bits[name])
            else:
                with read_part(located.parts[number]) as part:
                    to = flat_rows(np.append(at, size), mine) if has_matrix(name) else mine
                    bits[name][to] = part.bits(name, row[mine])
    return bits
