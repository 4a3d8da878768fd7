"""HDF5 as this project uses it: no locks, no filters, no times, fixed chunks, and vectors as their
stored bits.

Vectors are moved and compared as unsigned integers of the stored width, so that a copy is exact
whatever the type, NaN included; `decode` turns them into numbers. Equal content gives equal bytes:
space is allocated when a dataset is made, so the order of the writes does not show.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5p, h5s, h5t
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import StorageDtype

Array = NDArray[Any]

CHUNK_ROWS = 512
DAMAGES = (OSError, KeyError, ValueError, TypeError, RuntimeError)
"""What h5py raises about a file that is damaged, or of another kind."""

_GROUPS = ("representations", "checksums")
_RANKS = {
    "emb": 2,
    "emb_keys": 1,
    "length": 1,
    "windows": 1,
    "offset": 1,
    "representations": 2,
    "checksums": 1,
}
"""Dimensions of the datasets, and of those in each group."""
_KINDS = {h5g.GroupID: "group", h5d.DatasetID: "dataset"}
_SPAN = 4096  # rows that one read may cover
_GAP = 8  # unwanted rows that are cheaper to read than to step over


def _bfloat16() -> h5t.TypeID:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_precision(16)
    kind.set_ebias(127)
    return kind


_TYPES: dict[StorageDtype, h5t.TypeID] = {
    "float16": h5t.IEEE_F16LE,
    "float32": h5t.IEEE_F32LE,
    "bfloat16": _bfloat16(),
}


def largest(dtype: StorageDtype) -> float:
    """The largest number that a storage dtype holds; bfloat16 has nearly the range of float32."""
    return float(np.finfo(np.float16 if dtype == "float16" else np.float32).max)


@contextmanager
def open_hdf5(path: Path, remedy: str = "") -> Iterator[h5py.File]:
    """An HDF5 file without file locks, which shared filesystems may lack, and without a chunk
    cache: chunks are not compressed, so that a row is read, and a block written, straight from its
    place.

    A missing, truncated or foreign file raises StoreError, and so does one whose data lie in other
    files; `remedy` is what it says to do then.
    """
    try:
        file = connect(path)
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file", path=path, remedy=remedy) from None
    except OSError as error:
        raise StoreError(
            f"{path}: not a whole HDF5 file ({error})", path=path, remedy=remedy
        ) from None
    except DAMAGES as error:
        raise StoreError(
            f"{path}: not a file of vectors ({error})", path=path, remedy=remedy
        ) from None
    with file:
        yield file


def connect(path: Path | BinaryIO, mode: str = "r") -> h5py.File:
    """`open_hdf5` with h5py's own errors, for callers that tell them apart; the caller closes the
    file.

    ValueError for a file to be read whose data lie elsewhere, or which has other things where data
    sets belong.
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
            _check_contained(file, _RANKS)
            for group in filter(file.__contains__, _GROUPS):
                inside = file[group]
                _check_contained(inside, dict.fromkeys(inside, _RANKS[group]))
    except BaseException:
        file.close()
        raise
    return file


def _check_contained(group: h5py.Group, ranks: Mapping[str, int]) -> None:
    """ValueError unless what is there of these names are datasets of these ranks with their data
    in this very file.

    What a file refers to is read with the rights of whoever opens it: a file from elsewhere must
    not choose it.
    """
    for name, rank in ranks.items():
        # every file is checked when it is opened: h5py's objects would take four times as long
        key = name.encode()
        if key not in group.id:
            continue
        if group.id.links.get_info(key).type != h5l.TYPE_HARD:
            raise ValueError(f"{name} is a link to another place; data must lie in the file itself")
        item = h5o.open(group.id, key)
        kind = h5g.GroupID if group.name == "/" and name in _GROUPS else h5d.DatasetID
        if not isinstance(item, kind):
            what = _KINDS.get(type(item), "datatype")
            raise ValueError(f"{name} is a {what}, which does not belong there")
        if kind is h5g.GroupID:
            continue
        layout = item.get_create_plist()
        if layout.get_layout() == h5d.VIRTUAL or layout.get_external_count():
            raise ValueError(
                f"the data of {name} lie in other files; they must lie in the file itself"
            )
        if item.rank != rank:
            raise ValueError(f"{name} has shape {item.shape}, expected {rank} dimensions")


def encode(values: Array, dtype: StorageDtype) -> Array:
    """Numbers to stored bits of the same shape, rounded to nearest, ties to even; what overflows
    becomes infinite. Unsigned integers are stored bits already.
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
    """Stored bits to numbers: float16 or float32 as stored, bfloat16 as float32."""
    if dtype == "float16":
        return bits.view("<f2")
    if dtype == "float32":
        return bits.view("<f4")
    return (bits.astype("<u4") << 16).view("<f4")


def storage_dtype(dataset: h5py.Dataset) -> StorageDtype:
    """The name of the type that a dataset of vectors is stored in; ValueError for any other
    type.
    """
    kind = dataset.id.get_type()
    for name, known in _TYPES.items():
        if kind.equal(known):
            return name
    raise ValueError(
        f"dataset {dataset.name} is stored as {dataset.dtype}, which is no type for vectors"
    )


def create_vectors(
    group: h5py.Group, name: str, shape: tuple[int, int], dtype: StorageDtype
) -> h5py.Dataset:
    """An (n, D) dataset of vectors with all its space allocated, to be filled by `write_bits`."""
    return _create(group, name, shape, _TYPES[dtype])


def create_column(group: h5py.Group, name: str, rows: int, dtype: str) -> h5py.Dataset:
    """An (n,) dataset of numbers or fixed-length strings with all its space allocated."""
    return _create(group, name, (rows,), h5t.py_create(np.dtype(dtype)))


def _create(group: h5py.Group, name: str, shape: tuple[int, ...], kind: h5t.TypeID) -> h5py.Dataset:
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
    """Write rows start, start + 1, ... of an (n, D) dataset from stored bits."""
    if bits.size:
        bits = np.ascontiguousarray(bits)
        dataset.id.write(
            h5s.create_simple(bits.shape),
            _rows(dataset, start, bits.shape),
            bits,
            dataset.id.get_type(),
        )


def room(dataset: h5py.Dataset, rows: int) -> Array:
    """For the stored bits of so many rows of an (n, D) dataset."""
    return np.empty((rows, dataset.shape[1]), dtype=f"<u{dataset.id.get_type().get_size()}")


def read_bits(dataset: h5py.Dataset, start: int, stop: int, out: Array | None = None) -> Array:
    """Rows start to stop of an (n, D) dataset as stored bits."""
    if out is None:
        out = room(dataset, stop - start)
    if out.size:
        dataset.id.read(
            h5s.create_simple(out.shape),
            _rows(dataset, start, out.shape),
            out,
            dataset.id.get_type(),
        )
    return out


def _rows(dataset: h5py.Dataset, start: int, shape: tuple[int, ...]) -> h5s.SpaceID:
    space = dataset.id.get_space()
    space.select_hyperslab((start, 0), shape)
    return space


def take_bits(dataset: h5py.Dataset, rows: NDArray[np.int64]) -> Array:
    """The given rows (strictly increasing) as stored bits (k, D), in as few reads as is sensible.

    Needs little more memory than its result, however far the rows lie apart.
    """
    out = room(dataset, len(rows))
    if not len(rows):
        return out
    apart = (np.diff(rows) > _GAP) | (np.diff((rows - rows[0]) // _SPAN) > 0)
    cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(rows)]
    for begin, end in pairwise(cuts):
        first, last = int(rows[begin]), int(rows[end - 1]) + 1
        if last - first == end - begin:
            read_bits(dataset, first, last, out[begin:end])
        else:
            out[begin:end] = read_bits(dataset, first, last)[rows[begin:end] - first]
    return out


def flat_rows(offset: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of a flat per-residue dataset that belong to the given sequences, sequence by
    sequence.
    """
    starts, counts = offset[indices], offset[indices + 1] - offset[indices]
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()), dtype=np.int64)
