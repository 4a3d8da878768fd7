"""HDF5 as parts and masters use it: no locks, no filters, no times, fixed chunks, and vectors as
their stored bits.

Vectors are moved and compared as unsigned integers of the stored width, so that a copy is exact
whatever the type, NaN included; `decode` turns them into numbers. Equal content gives equal bytes:
space is allocated when a dataset is made, so the order of the writes does not show.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, get_args

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5p, h5s, h5t
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import SCORES, StorageDtype

Array = NDArray[Any]
Numbers = NDArray[np.int64]

CHUNK_ROWS = 512
DAMAGES = (OSError, KeyError, ValueError, TypeError, RuntimeError)
"""Errors that h5py raises about a file that is damaged, or of another kind."""

_RANKS = {
    **{"emb": 2, "emb_keys": 1, "length": 1, "windows": 1, "offset": 1},
    **dict.fromkeys(map(str, SCORES), 1),
    **{"representations": 2, "checksums": 1},
}
"""Dimensions of the datasets, and of those in each of the two groups."""
_SPAN_BYTES = 8 << 20  # that one read may cover
_GAP_BYTES = 1 << 14  # between rows that are cheaper to read than to step over


_memory_space = lru_cache(64)(h5s.create_simple)
"""Description of a whole array, by its shape: h5py takes as long to make one as to read a row."""

_BFLOAT16 = h5t.IEEE_F32LE.copy()
_BFLOAT16.set_fields(15, 7, 8, 0, 7)
_BFLOAT16.set_size(2)
_BFLOAT16.set_precision(16)
_BFLOAT16.set_ebias(127)
_TYPES: dict[str, h5t.TypeID] = {
    "float16": h5t.IEEE_F16LE,
    "float32": h5t.IEEE_F32LE,
    "bfloat16": _BFLOAT16,
}


@contextmanager
def open_hdf5(path: Path, remedy: str = "") -> Iterator[h5py.File]:
    """Open an HDF5 file for reading as `connect` does. StoreError, with the remedy, for a missing,
    truncated or foreign file, and for one whose data lie in other files.
    """
    try:
        file = connect(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file", path=path, remedy=remedy) from None
    except DAMAGES as error:
        kind = "a whole HDF5 file" if isinstance(error, OSError) else "a file of vectors"
        raise StoreError(f"{path}: not {kind} ({error})", path=path, remedy=remedy) from None
    with file:
        yield file


def connect(path: Path | BinaryIO, mode: str = "r") -> h5py.File:
    """Open an HDF5 file, which the caller closes, without file locks, which shared filesystems may
    lack, and without a chunk cache: chunks are not compressed, so that rows are read and written
    straight at their place.

    h5py's own errors; ValueError for a file to be read whose data lie elsewhere, or which has other
    things where datasets belong.
    """
    # v108: the oldest layout whose structures have checksums, which HDF5 verifies
    options = {"rdcc_nbytes": 0, "libver": ("v108", "v110")}
    try:
        file = h5py.File(path, mode, locking=False, **options)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
        file = h5py.File(path, mode, **options)  # this process has the file open with locks already
    try:
        if mode == "r":
            _check_contained(file)
    except BaseException:
        file.close()
        raise
    return file


def _check_contained(file: h5py.File) -> None:
    """Raise ValueError unless the file's datasets are what `_RANKS` says, with their data in this
    very file.
    """
    # every file is checked when it is opened: h5py's objects would take four times as long
    for name, rank in _RANKS.items():
        key = name.encode()
        if key not in file.id:
            continue
        item = _item(file.id, key)
        items = {name: item}
        if name in {"representations", "checksums"} and isinstance(item, h5g.GroupID):
            items = {inside.decode(): _item(item, inside) for inside in item}
        for inside, dataset in items.items():
            if isinstance(dataset, h5g.GroupID):
                raise ValueError(f"{inside} is a group, which does not belong there")
            if dataset.rank != rank:
                raise ValueError(f"{inside} has shape {dataset.shape}, expected {rank} dimensions")


def trailing_bytes(path: Path) -> int:
    """Return how many bytes follow the end of an HDF5 file, which ignores them; 0 where the format
    is older than `connect` writes it.
    """
    with path.open("rb") as file:
        superblock = file.read(36)  # at 8 its version; from version 2 on the file's end is at 28
    end = int.from_bytes(superblock[28:], "little")
    return path.stat().st_size - end if superblock[8] >= 2 else 0


def contained(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Open what a group of a foreign file holds. KeyError where there is no such name; ValueError
    for data that lie in another place.
    """
    if name not in group:
        raise KeyError(f"no {name}")
    item = _item(group.id, name.encode())
    return h5py.Group(item) if isinstance(item, h5g.GroupID) else h5py.Dataset(item)


def _item(folder: h5g.GroupID, key: bytes) -> h5g.GroupID | h5d.DatasetID:
    """Open a group or dataset. ValueError unless its data lie in this very file.

    What a file refers to is read with the rights of whoever opens it: a file from elsewhere must
    not choose it.
    """
    name = key.decode()
    if folder.links.get_info(key).type != h5l.TYPE_HARD:
        raise ValueError(f"{name} is a link to another place; data must lie in the file itself")
    item = h5o.open(folder, key)
    if isinstance(item, h5g.GroupID):
        return item
    if not isinstance(item, h5d.DatasetID):
        raise ValueError(f"{name} is a datatype, which does not belong there")
    layout = item.get_create_plist()
    if layout.get_layout() == h5d.VIRTUAL or layout.get_external_count():
        raise ValueError(f"the data of {name} lie in other files; they must lie in the file itself")
    return item


def encode(values: Array, dtype: StorageDtype) -> Array:
    """Turn numbers into stored bits of the same shape, rounded to nearest, ties to even; what
    overflows becomes infinite. Unsigned integers are stored bits already.
    """
    if values.dtype.kind == "u":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, dtype="<f2").view("<u2")
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    if dtype == "float32":
        return bits
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype("<u2")


def decode(bits: Array, dtype: StorageDtype) -> Array:
    """Turn stored bits into numbers: float16 or float32 as stored, bfloat16 as float32."""
    if dtype == "float16":
        return bits.view("<f2")
    if dtype == "float32":
        return bits.view("<f4")
    return (bits.astype("<u4") << 16).view("<f4")


def storage_dtype(dataset: h5py.Dataset) -> StorageDtype:
    """Name the type that a dataset of vectors is stored in; ValueError for any other type."""
    name: StorageDtype
    for name in get_args(StorageDtype):
        if dataset.id.get_type().equal(_TYPES[name]):
            return name
    raise ValueError(
        f"dataset {dataset.name} is stored as {dataset.dtype}, which is no type for vectors"
    )


def create_dataset(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: str
) -> h5py.Dataset:
    """Create a dataset with all its space: (n, D) vectors of a storage dtype, to be filled by
    `write_bits`, or a column (n,) of NumPy's numbers or fixed-length strings.
    """
    kind = _TYPES.get(dtype) or h5t.py_create(np.dtype(dtype))
    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_obj_track_times(False)
    layout.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5d.FILL_TIME_NEVER)
    if all(shape):
        # columns are narrow: a chunk of 512 numbers would be too small to be worth its index entry
        chunk = CHUNK_ROWS if len(shape) == 2 else 128 * CHUNK_ROWS
        layout.set_chunk((min(chunk, shape[0]), *shape[1:]))
    return h5py.Dataset(h5d.create(group.id, name.encode(), kind, h5s.create_simple(shape), layout))


def write_bits(dataset: h5py.Dataset, start: int, bits: Array) -> None:
    """Write rows start, start + 1, ... of a dataset from what `take_bits` gives."""
    if bits.size:
        bits = np.ascontiguousarray(bits)
        space = dataset.id.get_space()
        space.select_hyperslab((start, 0)[: bits.ndim], bits.shape)
        dataset.id.write(h5s.create_simple(bits.shape), space, bits, dataset.id.get_type())


class Extent(NamedTuple):
    """(n, D) vectors that lie row after row in an open file, to be read past HDF5, which lets in
    one thread at a time: from byte `begin` on, D numbers of so many bytes each.
    """

    file: int
    begin: int
    dim: int
    itemsize: int

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Self | None:
        """Return where the vectors of a dataset lie; None where HDF5 has scattered them."""
        dim, itemsize = dataset.shape[1], dataset.id.get_type().get_size()
        places = set[int]()
        if dataset.chunks and hasattr(dataset.id, "chunk_iter"):  # HDF5 1.12.3 has it
            dataset.id.chunk_iter(
                lambda at: places.add(at.byte_offset - at.chunk_offset[0] * dim * itemsize)
            )
        if len(places) != 1:
            return None
        return cls(dataset.file.id.get_vfd_handle(), places.pop(), dim, itemsize)

    def read(self, first: int, block: Array) -> None:
        """Fill a block with the rows from `first` on. OSError where the file is too short."""
        place, left = self.begin + first * block.strides[0], block.data.cast("B")
        while left:
            if not (count := os.preadv(self.file, [left], place)):
                raise OSError(f"the file ends at byte {place:,}")
            place, left = place + count, left[count:]


def take_bits(source: h5py.Dataset | Extent, rows: Numbers) -> Array:
    """Read the given rows (strictly increasing) of a dataset in as few reads as is sensible:
    (k, D) stored bits, or (k,) of a column.

    Needs little more memory than its result, however far the rows lie apart.
    """
    if isinstance(source, Extent):
        out = np.empty((len(rows), source.dim), f"<u{source.itemsize}")
    else:
        kind, columns = source.id.get_type(), source.shape[1:]
        dtype = np.dtype(f"<u{kind.get_size()}") if columns else source.dtype
        out = np.empty((len(rows), *columns), dtype)
        space = source.id.get_space()
    if not out.size:
        return out
    edges = [0, len(rows)]
    if rows[-1] - rows[0] > len(rows) - 1:
        width = out.nbytes // len(out)
        spans = (rows - rows[0]) // max(_SPAN_BYTES // width, 1)
        apart = (np.diff(rows) > max(_GAP_BYTES // width, 1)) | (np.diff(spans) > 0)
        edges[1:1] = (np.flatnonzero(apart) + 1).tolist()
    for begin, end in pairwise(edges):
        first, count = int(rows[begin]), int(rows[end - 1] - rows[begin]) + 1
        block = out[begin:end]
        if count > end - begin:
            block = np.empty((count, *out.shape[1:]), out.dtype)
        if isinstance(source, Extent):
            source.read(first, block)
        else:
            space.select_hyperslab((first, 0)[: out.ndim], block.shape)
            source.id.read(_memory_space(block.shape), space, block, kind)
        if count > end - begin:
            out[begin:end] = block[rows[begin:end] - first]
    return out


def flat_rows(starts: Numbers, counts: Numbers) -> Numbers:
    """Return the rows of sequences in a flat per-residue dataset, sequence by sequence: `counts[i]`
    from `starts[i]` on.
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()), dtype=np.int64)
