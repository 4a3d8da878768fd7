"""Vectors of a bucket in key order, read from the parts block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import is_per_residue
from plm_embed.store.hdf5 import Array, flat_rows
from plm_embed.store.parts import read_part
from plm_embed.store.rawio import Extents, Scatter, read_scattered

BLOCK_BYTES = 64 << 20
"""Vectors are moved in blocks of at most about this size, or of one sequence if that is larger."""


@dataclass(frozen=True)
class Served:
    """Where the vectors of a bucket lie: for each of its n keys the part (index into `parts`) and
    the row in it.

    windows int32 (n,) as stored; residues and flat int64 (n,): number of rows in the per-residue
    datasets and the first of them (0 if there are none); dims: D by representation; width: bytes
    per number; places: for each part and representation where its rows lie in the file, None where
    HDF5 has to read them.
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


def blocks(served: Served, memory: Memory | None = None) -> Iterator[Block]:
    """The vectors of a bucket in key order, block by block.

    The bits of a block stay until the block after the next is read, also over buckets that share
    `memory`.
    """
    memory = memory or Memory()
    if not served.dims:
        return
    widest = 4  # bytes per number
    per_key = sum(
        widest * dim * (served.residues if is_per_residue(name) else 1)
        for name, dim in served.dims.items()
    )
    number = np.cumsum(np.broadcast_to(per_key, served.row.shape)) // BLOCK_BYTES
    edges = np.flatnonzero(np.diff(number, prepend=-1, append=np.iinfo(np.int64).max)).tolist()
    for start, stop in pairwise(edges):
        memory.turn()
        yield Block(start, stop, _read_block(served, start, stop, memory))


def _read_block(served: Served, start: int, stop: int, memory: Memory) -> dict[str, Array]:
    which, row = served.part[start:stop], served.row[start:stop]
    bits: dict[str, Array] = {}
    for name, dim in served.dims.items():
        counts = (
            served.residues[start:stop]
            if is_per_residue(name)
            else np.ones(stop - start, dtype=np.int64)
        )
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
