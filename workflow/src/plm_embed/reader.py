"""Reading a master and its index: what `plm_embed.open` returns."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed import checksums
from plm_embed.errors import UserError
from plm_embed.fingerprint import Fingerprint
from plm_embed.hdf5 import DAMAGES, Array, connect, decode, open_hdf5, read_bits, storage_dtype, take_bits
from plm_embed.identifiers import ABSENT, SEVERAL, Identifiers
from plm_embed.parts import Keys, is_per_residue
from plm_embed.rawio import Extents, Scatter, extents, read_scattered
from plm_embed.store_reader import StoreVectors, is_store
from plm_embed.tables import read_batches, read_table
from plm_embed.vectors import Rows, Vectors, make_anndata, some

if TYPE_CHECKING:
    import anndata
    import pandas as pd
    import pyarrow as pa

MASTER = "master_esm2_embeddings.h5"
_SMALL = 1 << 16
_SPREAD = 4  # standard deviations


def open_vectors(path: Path) -> "Embeddings | StoreVectors":
    """A master (its .h5, its index, or their folder) or a store. UserError for anything else."""
    return StoreVectors(path) if is_store(path) else Embeddings(path)


class Embeddings(Vectors):
    """A master file and its index. Several records (ids) may share a row."""

    def __init__(self, path: Path) -> None:
        self.path = _find(path)
        with open_hdf5(self.path) as file:
            if "emb_keys" not in file or "representations" not in file:
                raise UserError(f"{self.path}: an HDF5 file, but no master of embeddings (no emb_keys)")
        self._file = connect(self.path)
        with self._reading():
            checksums.check_attributes(self._file)
        self._key_column = self._file["emb_keys"]
        self._count = int(self._key_column.shape[0])
        self._datasets = dict(self._file["representations"].items())
        if "emb" in self._file:
            self._datasets["emb"] = self._file["emb"]
            self._first = next((name for name in self.names if self._file["emb"] == self._datasets[name]), "emb")
        self._extents: dict[str, Extents | None] = {}

    def close(self) -> None:
        self._file.close()
        if "identifiers" in vars(self):
            self.identifiers.close()

    def __len__(self) -> int:
        return self._count

    @property
    def index(self) -> Path:
        """The Parquet file with a line per record."""
        return self.path.with_suffix(".parquet")

    @property
    def names(self) -> list[str]:
        return [name for name in self._datasets if name != "emb"]

    @property
    def dim(self) -> int:
        return int(self._datasets[self.names[0]].shape[1])

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Attributes of the file; `fingerprint`, `inputs` and `library_versions` as dictionaries."""
        found = {}
        for name, value in self._file.attrs.items():
            plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            found[name] = json.loads(plain) if isinstance(plain, str) and plain.startswith("{") else plain
        return found

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.from_json(self._file.attrs["fingerprint"])

    @cached_property
    def keys(self) -> Keys:
        return self._keys_between(0, len(self))

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        with self._reading():
            lengths: NDArray[np.int32] = self._file["length"][...]
            self._check("length", np.arange(len(self)), checksums.of_rows(lengths))
        return lengths

    @cached_property
    def ids(self) -> list[str]:
        """Ids of all records that have a vector, in the order of the index. They need not be unique."""
        ids: list[str] = self._index_columns(["id"])["id"].to_pylist()
        return ids

    @cached_property
    def identifiers(self) -> Identifiers:
        """Rows by id. The first use makes a file for it beside the index, which takes some time for many records."""
        ends = self._key_column[[0, -1]] if len(self) > 1 else self._key_column[...]
        master = f" {self._file.attrs['fingerprint_id']} {len(self)}".encode() + b" " + ends.tobytes()
        return Identifiers(self.index, master, self.check_index)

    def check_index(self) -> None:
        """UserError unless every row that the index names holds the sequence that the index says it does."""
        for lines in read_batches(self.index, ["row", "cache_key"]):
            rows, keys = lines["row"].to_numpy(), np.array(lines["cache_key"].to_pylist(), dtype="S64")
            first, last = int(rows.min()), int(rows.max())
            # lines are in the order of their rows, so that few rows serve many lines
            sound = first >= 0 and last < len(self) and last - first < len(rows)
            if not sound or (self._key_column[first : last + 1][rows - first] != keys).any():
                raise UserError(
                    f"{self.index}: not the index of {self.path}: it names other rows or sequences\n"
                    "put the two files of one run side by side, or run the workflow again"
                )

    def get(self, ids: Sequence[str], name: str = "emb") -> Array:
        """Vectors (k, D) of these record ids, in the order asked for.

        UserError for ids that are not there, and for one that records with different sequences share.
        """
        return self._take(self._pooled(name), self._rows_of_ids(ids))

    def rows(self, rows: Sequence[int], name: str = "emb") -> Array:
        """Vectors (k, D) of these rows, in the order asked for."""
        return self._take(self._pooled(name), self._within(np.asarray(rows, dtype=np.int64)))

    def matrix(self, row: int, name: str) -> Array:
        """The matrix (L, D) of a row in a per-residue representation."""
        if not is_per_residue(self._known(name)):
            raise UserError(f"{name} has one vector per record: use rows([{row}])")
        return self._residues(name, int(self._within(np.array([row]))[0]))

    def per_residue(self, id: str, name: str | None = None) -> Array:
        """The matrix (L, D) of one record; `name` defaults to the first per-residue representation."""
        names = [each for each in self.names if is_per_residue(each)]
        if not names:
            raise UserError(f"{self.path}: has no per-residue representation; it has {', '.join(self.names)}")
        return self._residues(self._known(name or names[0]), int(self._rows_of_ids([id])[0]))

    def to_numpy(self, name: str = "emb") -> Array:
        """All vectors of a representation: (n, D), or flat (R, D) when per residue."""
        if is_per_residue(self._known(name)):
            return self._matrices(name, 0, len(self))
        return self._span(name, 0, len(self))

    def to_pandas(self, *, vectors: bool = False, name: str = "emb") -> "pd.DataFrame":
        """The index, one line per record; with `vectors` also a column, called `name`, of arrays (D,)."""
        frame: pd.DataFrame = self._index_columns(None).to_pandas()
        if vectors:
            self.check_index()
            frame[name] = list(self._take(self._pooled(name), frame["row"].to_numpy()))
        return frame

    def to_anndata(self, name: str = "emb") -> "anndata.AnnData":
        """An observation for every record, named by its id, with the columns of the index; X (records, D)."""
        self.check_index()
        frame = self.to_pandas().set_index("id")
        return make_anndata(self._take(self._pooled(name), frame["row"].to_numpy()), frame)

    def _locate(self, keys: Keys) -> Rows:
        if "keys" not in vars(self) and len(self) > _SMALL and len(keys) < len(self) // _SMALL:
            return np.array([self._locate_one(key) for key in keys], dtype=np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), max(len(self) - 1, 0))
        return np.where(self.keys[at] == keys, at, -1) if len(self) else np.full(len(keys), -1)

    def _locate_one(self, key: bytes) -> int:
        """The row of a key, from the few thousand around where it should be: keys are evenly spread."""
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
        with self._reading():
            keys: Keys = self._key_column[start:stop]
            self._check("emb_keys", np.arange(start, start + len(keys)), checksums.of_rows(keys))
        return keys

    def _span(self, name: str, start: int, stop: int) -> Array:
        dataset = self._datasets[self._known(name)]
        with self._reading():
            bits = read_bits(dataset, start, stop)
            self._check(name, np.arange(start, stop), checksums.of_rows(bits))
        return decode(bits, storage_dtype(dataset))

    def _take(self, name: str, rows: Rows) -> Array:
        dataset = self._datasets[name]
        unique, back = np.unique(rows, return_inverse=True)
        with self._reading():
            bits = np.empty((len(unique), dataset.shape[1]), f"<u{dataset.id.get_type().get_size()}")
            if not self._scattered(dataset, unique, bits):
                bits = take_bits(dataset, unique)
            self._check(name, unique, checksums.of_rows(bits))
        return decode(bits[back], storage_dtype(dataset))

    def _scattered(self, dataset: h5py.Dataset, rows: Rows, out: Array) -> bool:
        """Read rows (increasing) straight from the file; False when HDF5 has to read them."""
        if dataset.name not in self._extents:
            self._extents[dataset.name] = extents(dataset)
        where = self._extents[dataset.name]
        if where is not None:
            read_scattered(self.path, where, Scatter(rows, np.ones_like(rows), np.arange(len(rows))), out)
        return where is not None

    def _residues(self, name: str, row: int) -> Array:
        return self._matrices(name, row, row + 1)

    def _matrices(self, name: str, start: int, stop: int) -> Array:
        """The matrices (L, D) of rows start to stop, one after the other."""
        dataset = self._datasets[name]
        with self._reading():
            offset: NDArray[np.int64] = self._file["offset"][start : stop + 1]
            if offset[0] < 0 or (np.diff(offset) <= 0).any() or offset[-1] > len(dataset):
                raise ValueError("offset does not say where its sequences begin")
            bits = read_bits(dataset, int(offset[0]), int(offset[-1]))
            self._check(name, np.arange(start, stop), checksums.of_sequences(bits, np.diff(offset)))
        return decode(bits, storage_dtype(dataset))

    def _check(self, name: str, rows: Rows, found: checksums.Sums) -> None:
        """ValueError unless these rows (increasing) have the checksums that were written with them, if any were."""
        if checksums.GROUP in self._file and len(rows):
            column, kept = (
                self._file[checksums.GROUP][self._first if name == "emb" else name],
                np.empty(len(rows), "<u8"),
            )
            if self._scattered(column, rows, kept):
                checksums.check(name, rows, kept, found)
            else:
                checksums.check(name, rows, checksums.kept(self._file, name, rows), found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what h5py and the checksums say about a damaged file into UserError."""
        try:
            yield
        except DAMAGES as error:
            raise UserError(
                f"{self.path}: damaged ({error})\n`snakemake --forcerun gather` writes it again from the store"
            ) from error

    def _index_columns(self, columns: list[str] | None) -> "pa.Table":
        return read_table(self.index, columns)

    def _rows_of_ids(self, ids: Sequence[str]) -> Rows:
        if isinstance(ids, str):
            raise UserError(f'ids are a list: get(["{ids}"])')
        if numbers := [id for id in ids if not isinstance(id, str)]:
            raise UserError(f'ids are text: get(["{numbers[0]}"]); for the number of a row, rows([{numbers[0]}])')
        rows = self.identifiers.rows(ids)
        absent = [id for id, row in zip(ids, rows, strict=True) if row == ABSENT]
        if absent:
            raise UserError(f"{self.path}: no vector for {some(absent)}; records.parquet says what became of a record")
        several = [id for id, row in zip(ids, rows, strict=True) if row == SEVERAL]
        if several:
            raise UserError(
                f"{self.path}: records with different sequences share the id {some(several)}; find their rows by "
                "source and number in to_pandas(), or use by_key"
            )
        return rows


def _find(path: Path) -> Path:
    """The master .h5 that a path means: itself, the one beside an index, or the one in a folder."""
    if path.is_dir():
        path = path / MASTER
    elif path.suffix == ".parquet":
        path = path.with_suffix(".h5")
    if not path.is_file():
        raise UserError(
            f"{path}: there is no such file; give a master .h5, its .parquet, the folder that holds them, or a store"
        )
    return path
