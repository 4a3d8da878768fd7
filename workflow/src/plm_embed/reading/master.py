"""A master and its index, as they are read."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import extra
from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.io.parquet import read_batches
from plm_embed.keys import Keys
from plm_embed.reading.exports.as_anndata import make_anndata
from plm_embed.reading.find import find_master, gather_again, held_open, reading, representations
from plm_embed.reading.index import Index
from plm_embed.reading.rows import Rows
from plm_embed.reading.vectors import Embedder, Vectors
from plm_embed.store import checksums
from plm_embed.store.hdf5 import (
    Array,
    connect,
    decode,
    open_hdf5,
    read_bits,
    room,
    storage_dtype,
    take_bits,
)
from plm_embed.store.rawio import Extents, extents, in_a_row, read_scattered

if TYPE_CHECKING:
    import anndata
    import pandas as pd

_SMALL = 1 << 16
_SPREAD = 4  # standard deviations


class Embeddings(Vectors):
    """A master file and its index. Several records (ids) may share a row."""

    def __init__(self, path: Path, embedder: Embedder | None = None) -> None:
        self.path, self.embedder = find_master(path), embedder
        with open_hdf5(self.path, remedy=gather_again(self.path)) as file:
            representations(file, self.path)
        self._file = connect(self.path)
        self._datasets = representations(self._file, self.path)
        with reading(self.path):
            checksums.check_attributes(self._file)
        self._key_column = self._file["emb_keys"]
        self._count = int(self._key_column.shape[0])
        if "emb" in self._datasets:
            self._first = next(
                (name for name in self.names if self._datasets["emb"] == self._datasets[name]),
                "emb",
            )
        self._extents: dict[str, Extents | None] = {}
        self._sums: dict[str, h5py.Dataset] = {}
        self._index = Index(self.path, self._key_column, self._file.attrs["fingerprint_id"])

    def close(self) -> None:
        self._file.close()
        self._index.close()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: object) -> bool:
        """Whether a record has this id and a vector."""
        return id in self._index

    @property
    def names(self) -> list[str]:
        return [name for name in self._datasets if name != "emb"]

    @property
    def dim(self) -> int:
        return int(self._datasets[self.names[0]].shape[1])

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Attributes of the file; `fingerprint`, `inputs` and `library_versions` as
        dictionaries.
        """
        found = {}
        with reading(self.path, self._file):
            for name, value in self._file.attrs.items():
                plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
                found[name] = (
                    json.loads(plain) if isinstance(plain, str) and plain.startswith("{") else plain
                )
        return found

    @property
    def fingerprint(self) -> Fingerprint:
        with reading(self.path, self._file):
            return Fingerprint.from_json(self._file.attrs["fingerprint"])

    @property
    def identity(self) -> str:
        """What tells it from masters of other sequences or settings: a SHA-256."""
        with reading(self.path, self._file):
            file = self._file
            sums = file[checksums.GROUP]["emb_keys"] if checksums.GROUP in file else self.keys
            told = f"{file.attrs['fingerprint_id']} {len(self)} ".encode() + sums[...].tobytes()
        return hashlib.sha256(told).hexdigest()

    @cached_property
    def keys(self) -> Keys:
        with reading(self.path, self._file):
            keys = self._keys_between(0, len(self))
            if not (keys[1:] > keys[:-1]).all():
                raise ValueError("the keys are not in order")
        return keys

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return self.lengths_of(np.arange(len(self)))

    def lengths_of(self, rows: Rows) -> NDArray[np.int32]:
        """Residues of the sequences of these rows (increasing)."""
        with reading(self.path, self._file):
            lengths: NDArray[np.int32] = self._cells(self._file["length"], rows)
            self._check("length", rows, checksums.of_rows(lengths))
        return lengths

    @property
    def ids(self) -> list[str]:
        """Ids of all records that have a vector, as the index has them; some may be alike."""
        return self._index.ids

    def __iter__(self) -> Iterator[str]:
        """The ids of all records that have a vector, in the order of the index."""
        for lines in read_batches(self.index, ["id"], gather_again(self.index)):
            yield from lines["id"].to_pylist()

    @property
    def index(self) -> Path:
        """The Parquet file with a line per record."""
        return self._index.path

    def check_index(self) -> None:
        """StoreError unless every row that the index names holds the sequence that the index says
        it does.
        """
        self._index.check()

    def get(self, ids: Iterable[str], name: str = "emb") -> Array:
        """Vectors (k, D) of these record ids, in the order asked for.

        UnknownIdError for ids that are not there; PlmEmbedError for one that records with different
        sequences share.
        """
        return self._take(self._pooled(name), self._index.rows(ids))

    def resolved(self, name: str) -> str:
        """A representation by its own name; "emb" is the first pooled one that was asked for."""
        first = min(self.fingerprint.representations, key=has_matrix)
        return first if name == "emb" else self._known(name)

    def per_residue(self, id: str, name: str | None = None) -> Array:
        """The matrix (L, D) of one record; `name` defaults to the first per-residue
        representation.
        """
        return self.matrix(int(self._index.rows([id])[0]), self._of_kind("per_residue", name))

    def per_token(self, id: str, name: str | None = None) -> tuple[Array, NDArray[np.int64]]:
        """The matrix (T, D) of one record, and the letters (T, 2) of each token in its normalized
        sequence: the first, and one past the last.
        """
        return self._tokens(int(self._index.rows([id])[0]), name)

    def to_numpy(self, name: str = "emb") -> Array:
        """All vectors of a representation: (n, D), or flat (R, D) when per residue or token, the
        spans of tokens as they are stored.
        """
        if has_matrix(self._known(name)):
            return self._matrices(name, 0, len(self))
        return super().to_numpy(name)

    def to_pandas(self, *, vectors: bool = False, name: str = "emb") -> "pd.DataFrame":
        """The index, a line per record; with `vectors` also a column `name`, of arrays (D,)."""
        self.check_index()
        with extra():
            frame: pd.DataFrame = self._index.columns(None).to_pandas()
        if vectors:
            taken = list(self._take(self._pooled(name), frame["row"].to_numpy()))
            frame.insert(frame.shape[1], name, taken)  # ValueError for a column of that name
        return frame

    def to_anndata(self, name: str = "emb") -> "anndata.AnnData":
        """An observation for every record, with the columns of the index; X (records, D). Its name
        is its id; where ids repeat, the column id has them, and names become x, x-1, x-2.
        """
        frame = self.to_pandas().set_index("id")
        return make_anndata(self._take(self._pooled(name), frame["row"].to_numpy()), frame)

    def _of_name(self, name: str) -> Array:
        vector: Array = self.get([name])[0]
        return vector

    def _lines(self, rows: Rows) -> pa.Table:
        return self._index.lines(rows)

    def _locate(self, keys: Keys) -> Rows:
        if "keys" not in vars(self) and len(self) > _SMALL and len(keys) < len(self) // _SMALL:
            return np.array([self._locate_one(key) for key in keys], dtype=np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), max(len(self) - 1, 0))
        return np.where(self.keys[at] == keys, at, -1) if len(self) else np.full(len(keys), -1)

    def _locate_one(self, key: bytes) -> int:
        """The row of a key, from the few thousand around where it should be: keys are evenly
        spread.
        """
        try:
            share = int(key[:16], 16) / 2**64
        except ValueError:
            return -1
        expected, margin = share * len(self), _SPREAD * len(self) ** 0.5 / 2 + 1
        start, stop = max(0, int(expected - margin)), min(len(self), int(expected + margin) + 1)
        while True:
            held = self._keys_between(start, stop)
            if start and key < held[0]:
                start = max(0, start - (stop - start))
            elif stop < len(self) and key > held[-1]:
                stop = min(len(self), stop + (stop - start))
            else:
                at = int(np.searchsorted(held, key))
                return start + at if at < len(held) and held[at] == key else -1

    def _keys_between(self, start: int, stop: int) -> Keys:
        with reading(self.path, self._file):
            keys: Keys = self._key_column[start:stop]
            self._check("emb_keys", np.arange(start, start + len(keys)), checksums.of_rows(keys))
        return keys

    def _span(self, name: str, start: int, stop: int) -> Array:
        dataset = self._datasets[self._known(name)]
        with reading(self.path, self._file):
            rows = np.arange(start, stop)
            bits = room(dataset, stop - start)
            if not self._scattered(dataset, rows, bits):
                read_bits(dataset, start, stop, bits)
            self._check(name, rows, checksums.of_rows(bits))
        return decode(bits, storage_dtype(dataset))

    def _take(self, name: str, rows: Rows) -> Array:
        dataset = self._datasets[name]
        unique, back = np.unique(rows, return_inverse=True)
        with reading(self.path, self._file):
            bits = room(dataset, len(unique))
            if not self._scattered(dataset, unique, bits):
                bits = take_bits(dataset, unique)
            self._check(name, unique, checksums.of_rows(bits))
        return decode(bits[back], storage_dtype(dataset))

    def _scattered(self, dataset: h5py.Dataset, rows: Rows, out: Array) -> bool:
        """Read rows (increasing) straight from the file; False when HDF5 has to read them."""
        if dataset.name not in self._extents:
            self._extents[dataset.name] = extents(dataset)
        where = self._extents[dataset.name]
        if where is not None and len(rows):
            path = held_open(self.path, self._file)
            read_scattered(path, where, in_a_row(rows), out, gather_again(self.path))
        return where is not None

    def _residues(self, name: str, row: int) -> Array:
        return self._matrices(name, row, row + 1)

    def _matrices(self, name: str, start: int, stop: int) -> Array:
        """The matrices (L, D) of rows start to stop, one after the other."""
        dataset = self._datasets[name]
        with reading(self.path, self._file):
            offset: NDArray[np.int64] = self._file["offset"][start : stop + 1]
            if offset[0] < 0 or (np.diff(offset) <= 0).any() or offset[-1] > len(dataset):
                raise ValueError("offset does not say where its sequences begin")
            bits = read_bits(dataset, int(offset[0]), int(offset[-1]))
            self._check(name, np.arange(start, stop), checksums.of_sequences(bits, np.diff(offset)))
        return decode(bits, storage_dtype(dataset))

    def _check(self, name: str, rows: Rows, found: checksums.Sums) -> None:
        """ValueError unless these rows (increasing) have the checksums that were written with them,
        if any were.
        """
        name = self._first if name == "emb" else name
        if name not in self._sums and checksums.GROUP in self._file:
            self._sums[name] = self._file[checksums.GROUP][name]
        if name in self._sums and len(rows):
            checksums.check(name, rows, self._cells(self._sums[name], rows), found)

    def _cells(self, column: h5py.Dataset, rows: Rows) -> Array:
        """Of a column, at rows (increasing)."""
        found: Array = np.empty(len(rows), column.dtype)
        return found if self._scattered(column, rows, found) else column[...][rows]
