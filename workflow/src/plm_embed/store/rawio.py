"""Rows of vectors moved straight between files and memory, past HDF5: its part is to say where in
the file they lie.
"""

import ctypes
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from h5py import h5d
from numpy.typing import NDArray

from plm_embed.errors import EMBED_AGAIN, StoreError
from plm_embed.io.threads import OneAtATime
from plm_embed.store.hdf5 import Array, write_bits

Numbers = NDArray[np.int64]
_PREADV = ctypes.CDLL(None).preadv
_PREADV.argtypes, _PREADV.restype = (
    (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64),
    ctypes.c_ssize_t,
)
_PIECES = 1000  # that one call reads into; systems allow 1,024
_FLUSH = 1 << 27  # bytes after which the system is told to begin to write them to the disk
# bytes per call: Linux 6 fills its page cache several times slower in calls of 8 MiB (ext4,
# measured)
_WRITE = 1 << 19


class Extents(NamedTuple):
    """Where the rows of a dataset lie in its file: from row `rows[i]` on, row r is at byte
    `zero[i] + r * width`.
    """

    rows: Numbers
    zero: Numbers
    width: int

    def places(self, rows: Numbers) -> Numbers:
        """The first byte of each row."""
        return self.zero[np.searchsorted(self.rows, rows, side="right") - 1] + rows * self.width


class Scatter(NamedTuple):
    """`counts[i]` rows from row `starts[i]` (increasing) on are wanted in rows `at[i]`, ... for
    every i.
    """

    starts: Numbers
    counts: Numbers
    at: Numbers


def in_a_row(rows: Numbers) -> Scatter:
    """These rows (one at least, increasing), one after the other."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return Scatter(rows[:1], np.array([len(rows)]), np.zeros(1, np.int64))
    return Scatter(rows, np.ones_like(rows), np.arange(len(rows)))


def extents(dataset: h5py.Dataset) -> Extents | None:
    """Where the rows of a dataset, (n, D) or (n,), lie. None when HDF5 has to read them:
    compressed, empty.
    """
    layout = dataset.id.get_create_plist()
    if not dataset.size or layout.get_layout() != h5d.CHUNKED or layout.get_nfilters():
        return None
    height, *columns = dataset.chunks
    if columns != list(dataset.shape[1:]):
        return None
    width = math.prod(columns) * dataset.id.get_type().get_size()
    chunks: list[tuple[int, int]] = []
    dataset.id.chunk_iter(lambda chunk: chunks.append((chunk.chunk_offset[0], chunk.byte_offset)))
    if len(chunks) != -(-dataset.shape[0] // height):
        return None
    rows, places = np.array(sorted(chunks), dtype=np.int64).T
    zero = places - rows * width
    heads = np.flatnonzero(np.diff(zero, prepend=zero[0] - 1))
    return Extents(rows[heads], zero[heads], width)


def read_scattered(
    path: Path, where: Extents, wanted: Scatter, block: Array, remedy: str = EMBED_AGAIN
) -> None:
    """Read rows of a dataset into rows of `block` (k, D). StoreError when the file ends before
    them.

    The kernel puts each row into its place; there is no copy in between.
    """
    if not len(wanted.starts):
        return
    starts, counts, at = _cut(_joined(wanted), where.rows)
    sizes, places = counts * where.width, where.places(starts)
    low = at * where.width
    if low.min() < 0 or (low + sizes).max() > block.nbytes or not block.flags.carray:
        raise ValueError("rows do not fit into the block")
    vectors = np.stack(
        [(block.ctypes.data + low).astype(np.uintp), sizes.astype(np.uintp)], axis=1
    )  # struct iovec
    apart = places[1:] != places[:-1] + sizes[:-1]
    apart |= np.arange(1, len(starts)) % _PIECES == 0
    total = np.concatenate([[0], np.cumsum(sizes)])
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        what = f"{path}: missing since it was looked at"
        raise StoreError(what, remedy=remedy, path=path) from None
    try:
        for first, stop in pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)]):
            if (
                _preadv(descriptor, vectors[first:stop], int(places[first]))
                != total[stop] - total[first]
            ):
                view = block.data.cast("B")  # the system gave less than all, or an error
                for begin, size, place in zip(
                    *(each[first:stop].tolist() for each in (low, sizes, places)), strict=True
                ):
                    _read_all(descriptor, view[begin : begin + size], place, path, remedy)
    finally:
        os.close(descriptor)


def _preadv(descriptor: int, vectors: NDArray[np.uintp], place: int) -> int:
    """preadv(2) for memory given by address and size. `os.preadv` would want an object for each of
    a million rows.
    """
    count: int = _PREADV(descriptor, vectors.ctypes.data, len(vectors), place)
    return count


def _joined(wanted: Scatter) -> Scatter:
    """Neighbors in the file that are neighbors in memory too, as one."""
    starts, counts, at = wanted
    apart = (starts[1:] != starts[:-1] + counts[:-1]) | (at[1:] != at[:-1] + counts[:-1])
    heads = np.concatenate([[0], np.flatnonzero(apart) + 1])
    return Scatter(starts[heads], np.add.reduceat(counts, heads), at[heads])


def _cut(wanted: Scatter, edges: Numbers) -> Scatter:
    """The same rows, so that none of the edges (rows of the dataset, increasing) lies within a
    piece.
    """
    starts, counts, at = wanted
    owner = np.searchsorted(starts, edges, side="right") - 1
    inside = (owner >= 0) & (edges > starts[owner]) & (edges < starts[owner] + counts[owner])
    if not inside.any():
        return wanted
    cut = np.sort(np.concatenate([starts, edges[inside]]))
    owner = np.searchsorted(starts, cut, side="right") - 1
    stop = np.minimum(starts[owner] + counts[owner], np.append(cut[1:], np.iinfo(np.int64).max))
    return Scatter(cut, stop - cut, at[owner] + cut - starts[owner])


def _read_all(descriptor: int, piece: memoryview, place: int, path: Path, remedy: str) -> None:
    done = 0
    while done < len(piece):
        got = os.preadv(descriptor, [piece[done:]], place + done)
        if not got:
            raise StoreError(f"{path}: ends too early", remedy=remedy, path=path)
        done += got


def write_block(descriptor: int, where: Extents, row: int, block: Array) -> None:
    """Write `block` (k, D) to rows `row`, ... of a dataset in an open file."""
    count = np.array([len(block)])
    pieces = _cut(Scatter(np.array([row]), count, np.zeros(1, dtype=np.int64)), where.rows)
    view = block.data.cast("B")
    for place, rows, at in zip(
        where.places(pieces.starts).tolist(), *(each.tolist() for each in pieces[1:]), strict=True
    ):
        piece = view[at * where.width : (at + rows) * where.width]
        done = 0
        while done < len(piece):
            done += os.pwrite(descriptor, piece[done : done + _WRITE], place + done)
        begin, end = (edge // _FLUSH * _FLUSH for edge in (place, place + len(piece)))
        if end > begin and hasattr(os, "posix_fadvise"):
            # so that less is left to wait for at the end
            os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_DONTNEED)


class VectorWriter(OneAtATime):
    """Writes blocks of vectors into `/representations` of an HDF5 file while the caller reads the
    next ones.
    """

    def __init__(self, file: h5py.File) -> None:
        super().__init__()
        self._datasets: dict[str, h5py.Dataset] = dict(file["representations"].items())
        self._places = {name: extents(dataset) for name, dataset in self._datasets.items()}
        self._descriptor = os.open(file.filename, os.O_WRONLY)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self._descriptor)

    def write(self, name: str, row: int, bits: Array) -> None:
        """Write stored bits (k, D) to rows `row`, ...; they must stay as they are until the write
        after the next.
        """
        where = self._places[name]
        if where is None:
            self.wait()
            write_bits(self._datasets[name], row, bits)
        elif bits.size:
            self.run(write_block, self._descriptor, where, row, bits)

    def sync(self) -> None:
        """Begin to wait for the disk, beside the caller."""
        self.run(os.fsync, self._descriptor)
