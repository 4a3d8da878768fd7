"""Vectors of a bucket as its parts hold them: found by key, and read piece by piece in key order.

Parts are sorted by key, as the bucket is: of each part a piece needs one contiguous slab.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import Fingerprint, has_matrix, storage_bytes
from plm_embed.keys import Keys
from plm_embed.sequence_windows import stored_residues
from plm_embed.store import checksums
from plm_embed.store.hdf5 import Array, Numbers, flat_rows
from plm_embed.store.parts import Part, PartInfo, column_types, parts_folder

BLOCK_BYTES = 16 << 20
"""Vectors are moved in blocks of at most about this size, or of one sequence if that is larger."""


@dataclass(frozen=True)
class StoredBucket:
    """Sequences of bucket `name` that have a vector: their keys, sorted (S64 (n,)), and their
    lengths in residues (int32 (n,)).
    """

    name: str
    keys: Keys
    length: NDArray[np.int32]
    fingerprint: Fingerprint
    parts: Sequence[PartInfo]
    """Parts that hold the vectors."""
    record: Path
    """The completion record, which names the parts."""

    def error(self, path: Path, problem: str) -> StoreError:
        """Return the error for a file of the bucket."""
        return StoreError(f"{path}: {problem}", remedy=delete(self.record), path=path)


class Located(NamedTuple):
    """Places of the vectors of a bucket: for each of its n keys the part (index into `parts`) and
    the row in it.

    columns: emb_keys, length, windows and scores (n,); residues (n,): number of rows in the
    per-residue datasets, 0 if there are none; sums: checksums (n,) by representation, where all
    parts keep them.
    """

    parts: Sequence[Part]
    part: NDArray[np.int32]
    row: Numbers
    columns: Mapping[str, Array]
    residues: Numbers
    sums: Mapping[str, checksums.Sums]


@contextmanager
def located(bucket: StoredBucket, store: Path) -> Iterator[Located]:
    """Find every vector of a bucket: in the first part, by name, that holds its key. The parts are
    open within.

    StoreError when a part is missing, damaged or does not fit, and for a key that is in none.
    """
    fingerprint, count = bucket.fingerprint, len(bucket.keys)
    folder, names = parts_folder(store, fingerprint), sorted(part.name for part in bucket.parts)
    places, row = np.full(count, -1, np.int32), np.zeros(count, np.int64)
    residues = np.zeros(count, np.int64)
    columns = {name: np.zeros(count, kind) for name, kind in column_types(fingerprint).items()}
    del columns["emb_keys"]
    sums = {name: np.zeros(count, np.uint64) for name in fingerprint.representations}
    with ExitStack() as stack:
        parts = [stack.enter_context(Part(folder / name)) for name in names]
        for number, part in enumerate(parts):
            part.check(fingerprint)
            if part.dims != parts[0].dims:
                words = f"its vectors have dimensions {part.dims}, others {parts[0].dims}"
                raise bucket.error(part.path, words)
            stored = part.locate(bucket.keys)
            new = np.flatnonzero((places < 0) & (stored >= 0))
            rows = stored[new]
            places[new], row[new] = number, rows
            for name, values in columns.items():
                values[new] = part.column_at(name, rows)
            if part.matrices:
                residues[new] = part.residues_at(rows)
            for name in tuple(sums):
                if (part_sums := part.sums_at(name, rows)) is None:
                    del sums[name]
                else:
                    sums[name][new] = part_sums
        if (lost := places < 0).any():
            key = bucket.keys[lost][0].decode()
            words = f"{lost.sum()} sequences are in none of its parts (first: {key})"
            raise bucket.error(bucket.record, words)
        wrong = columns["length"] != bucket.length
        if "per_residue" in fingerprint.pooling:  # else letters do not tell the rows
            wrong |= residues != stored_residues(bucket.length, fingerprint.long_sequences)
        for place in np.flatnonzero(wrong)[:1].tolist():
            key = bucket.keys[place].decode()
            words = f"says another length for {key} than bucket {bucket.name}"
            raise bucket.error(parts[places[place]].path, words)
        yield Located(parts, places, row, {"emb_keys": bucket.keys, **columns}, residues, sums)


class Piece(NamedTuple):
    """Rows of a column or representation `name` of a master, whose dataset is at `path`: from
    `start` on `values` (k,), or stored bits (k, D).

    They are of m sequences in a row, the first in row `first` of the master, with `counts` (m,)
    rows each. sums (m,): their checksums, None where none are kept.
    """

    name: str
    path: str
    start: int
    values: Array
    first: int
    counts: Numbers
    sums: checksums.Sums | None


def pieces(buckets: Iterable[StoredBucket], store: Path) -> Iterator[Piece]:
    """Yield all that a master of these buckets holds, bucket by bucket. Vectors are read without a
    look at their checksums, which go along.

    StoreError for a part that does not fit.
    """
    row = residue = 0
    for bucket in buckets:
        with located(bucket, store) as vectors:
            ones = np.ones(len(bucket.keys), np.int64)
            for name, values in vectors.columns.items():
                yield Piece(name, name, row, values, row, ones, checksums.of_rows(values))
            offset = residue + np.concatenate([[0], np.cumsum(vectors.residues)])
            if any(map(has_matrix, bucket.fingerprint.representations)):
                counts = np.ones(len(offset), np.int64)
                yield Piece("offset", "offset", row, offset, row, counts, None)
            width = storage_bytes(bucket.fingerprint.storage_dtype)
            for name, dim in vectors.parts[0].dims.items() if vectors.parts else ():
                counts, starts = ones, row + np.arange(len(ones))
                if has_matrix(name):
                    counts, starts = vectors.residues, offset[:-1]
                number = np.cumsum(counts) * dim * width // BLOCK_BYTES
                edges = np.flatnonzero(np.diff(number, prepend=-1, append=np.iinfo(np.int64).max))
                for first, stop in pairwise(edges.tolist()):
                    path, start = f"representations/{name}", int(starts[first])
                    rows = counts[first:stop]
                    bits = _read(vectors, name, first, rows)
                    if name in vectors.sums:  # as the part keeps them: a change here shows
                        sums = vectors.sums[name][first:stop]
                    else:  # a part of release 0.1
                        sums = sums_of(name, bits, rows)
                    yield Piece(name, path, start, bits, row + first, rows, sums)
        row, residue = row + len(bucket.keys), int(offset[-1])


def _read(vectors: Located, name: str, first: int, counts: Numbers) -> Array:
    """Read the stored bits of the keys from `first` on, each with so many rows."""
    part_of, ends = vectors.part[first : first + len(counts)], np.cumsum(counts)
    bits = np.empty(0)
    for number in np.unique(part_of).tolist():
        mine = np.flatnonzero(part_of == number)
        part, rows = vectors.parts[number], vectors.row[first + mine]
        if has_matrix(name):
            rows = flat_rows(part.offset[rows], counts[mine])
            mine = flat_rows((ends - counts)[mine], counts[mine])
        slab: Array = part.unchecked_bits(name, rows)
        if len(slab) == ends[-1]:
            return slab
        bits = bits if len(bits) else np.empty((ends[-1], slab.shape[1]), slab.dtype)
        bits[mine] = slab
    return bits


def sums_of(name: str, bits: Array, counts: Numbers) -> checksums.Sums:
    """Return the checksums (m,) of sequences with so many rows each of a representation."""
    return checksums.of_sequences(bits, counts) if has_matrix(name) else checksums.of_rows(bits)
