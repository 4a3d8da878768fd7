"""Vectors of a bucket in key order: where they lie in the parts, and read block by block.

Parts are sorted by key, as the bucket is: of each part a block needs one contiguous slab.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import Fingerprint, has_matrix, storage_bytes
from plm_embed.keys import Keys
from plm_embed.sequence_windows import stored_residues
from plm_embed.store.checksums import Sums
from plm_embed.store.hdf5 import Array, Numbers, flat_rows
from plm_embed.store.parts import Part, PartInfo, parts_folder

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


@dataclass(frozen=True)
class Located:
    """Places of the vectors of a bucket: for each of its n keys the part (index into `parts`) and
    the row in it.

    windows int32 (n,) as stored; scores float32 (n,) by name; residues int64 (n,): number of rows
    in the per-residue datasets, 0 if there are none; dims: D by representation; sums: checksums
    (n,) by representation, where all parts keep them.
    """

    parts: tuple[Part, ...]
    part: NDArray[np.int32]
    row: Numbers
    windows: NDArray[np.int32]
    scores: Mapping[str, NDArray[np.float32]]
    residues: Numbers
    dims: Mapping[str, int]
    width: int
    """Bytes per number."""
    sums: Mapping[str, Sums]


@dataclass(frozen=True)
class Block:
    """Stored bits of keys `start` to `stop` of a bucket by representation: (k, D), or flat (r, D)
    when per residue.
    """

    start: int
    stop: int
    bits: dict[str, Array]


@contextmanager
def located(bucket: StoredBucket, store: Path) -> Iterator[Located]:
    """Find every vector of a bucket: in the first part, by name, that holds its key. The parts are
    open within.

    StoreError when a part is missing, damaged or does not fit, and for a key that is in none.
    """
    count, fingerprint = len(bucket.keys), bucket.fingerprint
    folder, names = parts_folder(store, fingerprint), sorted(part.name for part in bucket.parts)
    places, row = np.full(count, -1, np.int32), np.zeros(count, np.int64)
    residues = np.zeros(count, np.int64)
    columns: dict[str, Array] = {name: np.zeros(count, np.int32) for name in ("length", "windows")}
    columns |= {score: np.zeros(count, np.float32) for score in fingerprint.scores}
    sums = {name: np.zeros(count, np.uint64) for name in fingerprint.representations}
    dims: dict[str, int] = {}
    with ExitStack() as stack:
        parts = tuple(stack.enter_context(Part(folder / name)) for name in names)
        for number, part in enumerate(parts):
            part.check(fingerprint)
            if (dims := dims or part.dims) != part.dims:
                words = f"its vectors have dimensions {part.dims}, others {dims}"
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
        wrong = columns.pop("length") != bucket.length
        if "per_residue" in fingerprint.pooling:  # else letters do not tell the rows
            wrong |= residues != stored_residues(bucket.length, fingerprint.long_sequences)
        for place in np.flatnonzero(wrong)[:1].tolist():
            key = bucket.keys[place].decode()
            words = f"says another length for {key} than bucket {bucket.name}"
            raise bucket.error(parts[places[place]].path, words)
        width, windows = storage_bytes(fingerprint.storage_dtype), columns.pop("windows")
        yield Located(parts, places, row, windows, columns, residues, dims, width, sums)


def blocks(located: Located) -> Iterator[Block]:
    """Read the vectors of a bucket in key order, block by block, without a look at checksums."""
    per_key = sum(
        located.width * dim * (located.residues if has_matrix(name) else 1)
        for name, dim in located.dims.items()
    )
    number = np.cumsum(np.broadcast_to(per_key, located.row.shape)) // BLOCK_BYTES
    edges = np.flatnonzero(np.diff(number, prepend=-1, append=np.iinfo(np.int64).max)).tolist()
    for start, stop in pairwise(edges):
        bits = {name: _read(located, name, start, stop) for name in located.dims}
        yield Block(start, stop, bits)


def _read(located: Located, name: str, start: int, stop: int) -> Array:
    """Read the stored bits of keys `start` to `stop` of one representation."""
    flat = has_matrix(name)
    counts = located.residues[start:stop] if flat else np.ones(stop - start, np.int64)
    first = np.cumsum(counts) - counts
    bits = np.empty((int(counts.sum()), located.dims[name]), f"<u{located.width}")
    numbers = located.part[start:stop]
    for number in np.unique(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        part, rows = located.parts[number], located.row[start + mine]
        if flat:
            rows = flat_rows(part.offset[rows], counts[mine])
            mine = flat_rows(first[mine], counts[mine])
        taken: Array = part.unchecked_bits(name, rows)
        if len(taken) == len(bits):
            return taken
        bits[mine] = taken
    return bits
