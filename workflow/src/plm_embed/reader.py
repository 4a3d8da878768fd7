"""Reading embeddings: what `plm_embed.open` returns."""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import UserError
from plm_embed.fingerprint import Fingerprint
from plm_embed.hdf5 import Array, connect, decode, open_hdf5, read_bits, storage_dtype, take_bits
from plm_embed.parts import Keys, is_per_residue

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MASTER = "master_esm2_embeddings.h5"
_AT_ONCE = 1 << 16


class Embeddings:
    """A master file and its index, open for reading; a context manager. Vectors stay on disk until asked for.

    Row i belongs to key i; keys are sorted. Several records (ids) may share a row. `name` chooses a representation,
    such as "mean_l33"; "emb" is the first pooled one. Numbers come as stored (float16 or float32; bfloat16 as float32).
    """

    def __init__(self, path: Path) -> None:
        self.path = _find(path)
        with open_hdf5(self.path) as file:
            if "emb_keys" not in file or "representations" not in file:
                raise UserError(f"{self.path}: an HDF5 file, but no master of embeddings (no emb_keys)")
        self._file = connect(self.path)
        self._count = int(self._file["emb_keys"].shape[0])
        self._vectors = dict(self._file["representations"].items())
        if "emb" in self._file:
            self._vectors["emb"] = self._file["emb"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        """Rows: distinct sequences."""
        return self._count

    def __repr__(self) -> str:
        names = ", ".join(self.names)
        return f"<Embeddings {self.path}: {len(self):,} x {self.dim}, {names}>"

    @property
    def names(self) -> list[str]:
        """The representations in this file."""
        return [name for name in self._vectors if name != "emb"]

    @property
    def dim(self) -> int:
        """D, the number of values per vector."""
        return int(self._vectors[self.names[0]].shape[1])

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
        """What these vectors depend on."""
        return Fingerprint.from_json(self._file.attrs["fingerprint"])

    @cached_property
    def keys(self) -> Keys:
        """SHA-256 of each row's sequence: S64 (n,), sorted."""
        keys: Keys = self._file["emb_keys"][...]
        return keys

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Residues of each row's sequence (n,)."""
        lengths: NDArray[np.int32] = self._file["length"][...]
        return lengths

    @cached_property
    def ids(self) -> list[str]:
        """Ids of all records that have a vector, in the order of the index. They need not be unique."""
        ids: list[str] = self._index_columns(["id"])["id"].to_pylist()
        return ids

    def get(self, ids: Sequence[str], name: str = "emb") -> Array:
        """Vectors (k, D) of these record ids, in the order asked for.

        UserError for ids that are not there, and for one that records with different sequences share.
        """
        return self._rows(self._rows_of_ids(ids), name)

    def by_key(self, keys: Sequence[str] | Keys, name: str = "emb") -> Array:
        """Vectors (k, D) of these keys, in the order asked for. UserError for keys that are not there."""
        wanted = np.asarray(keys, dtype="S64").reshape(-1)
        if not len(self):
            at = np.zeros(0, dtype=np.int64)
            absent = wanted
        else:
            at = np.minimum(np.searchsorted(self.keys, wanted), len(self) - 1)
            absent = wanted[self.keys[at] != wanted]
        if len(absent):
            raise UserError(f"{self.path}: no vector for {_some([key.decode() for key in absent])}")
        return self._rows(at, name)

    def __getitem__(self, rows: int | slice | NDArray[Any] | list[int]) -> Array:
        """Rows of "emb": a vector (D,) for a number, vectors (k, D) for a slice or an array of numbers."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._slice("emb", start, max(start, stop))
            return self._rows(np.arange(start, stop, step), "emb")
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} of {len(self)}")
            at = int(rows) % len(self)
            vector: Array = self._slice("emb", at, at + 1)[0]
            return vector
        chosen = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        if len(chosen) and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise IndexError(f"rows {chosen.min()} to {chosen.max()} of {len(self)}")
        return self._rows(chosen % max(len(self), 1), "emb")

    def per_residue(self, id: str, name: str | None = None) -> Array:
        """The matrix (L, D) of one record; `name` defaults to the first per-residue representation."""
        names = [each for each in self.names if is_per_residue(each)]
        if not names:
            raise UserError(f"{self.path}: has no per-residue representation; it has {', '.join(self.names)}")
        row = int(self._rows_of_ids([id])[0])
        start, stop = self._file["offset"][row : row + 2].tolist()
        return self._slice(name or names[0], start, stop)

    def iter_batches(self, rows: int = 4096, name: str = "emb") -> Iterator[tuple[Keys, Array]]:
        """All rows in order, as (keys (k,), vectors (k, D)) of at most `rows` rows."""
        for start in range(0, len(self), rows):
            stop = min(start + rows, len(self))
            yield self._file["emb_keys"][start:stop], self._slice(self._pooled(name), start, stop)

    def to_numpy(self, name: str = "emb") -> Array:
        """All vectors of a representation: (n, D), or flat (R, D) when per residue."""
        return self._slice(name, 0, self._dataset(name).shape[0])

    def to_pandas(self, *, vectors: bool = False, name: str = "emb") -> "pd.DataFrame":
        """The index, one line per record; with `vectors` also a column, called `name`, of arrays (D,)."""
        frame: pd.DataFrame = self._index_columns(None).to_pandas()
        if vectors:
            rows = self._rows(frame["row"].to_numpy(), name)
            frame[name] = list(rows)
        return frame

    def _dataset(self, name: str) -> Any:
        if name not in self._vectors:
            raise UserError(f"{self.path}: has no representation {name}; it has {', '.join(self.names)}")
        return self._vectors[name]

    def _pooled(self, name: str) -> str:
        if is_per_residue(name):
            raise UserError(f"{name} has a matrix per record: use per_residue(id)")
        return name

    def _slice(self, name: str, start: int, stop: int) -> Array:
        dataset = self._dataset(name)
        return decode(read_bits(dataset, start, stop), storage_dtype(dataset))

    def _rows(self, rows: NDArray[np.int64], name: str) -> Array:
        dataset = self._dataset(self._pooled(name))
        unique, back = np.unique(rows, return_inverse=True)
        return decode(take_bits(dataset, unique)[back], storage_dtype(dataset))

    def _index_columns(self, columns: list[str] | None) -> "pa.Table":
        from plm_embed.tables import read_table

        return read_table(self.path.with_suffix(".parquet"), columns)

    @cached_property
    def _row_by_id(self) -> dict[str, int]:
        """Row by id; -1 for an id of several records whose sequences differ."""
        table = self._index_columns(["id", "row"])
        rows: dict[str, int] = {}
        for id, row in zip(table["id"].to_pylist(), table["row"].to_pylist(), strict=True):
            if rows.setdefault(id, row) != row:
                rows[id] = -1
        return rows

    def _rows_of_ids(self, ids: Sequence[str]) -> NDArray[np.int64]:
        if isinstance(ids, str):
            raise UserError(f'ids are a list: get(["{ids}"])')
        absent = [id for id in ids if id not in self._row_by_id]
        if absent:
            raise UserError(f"{self.path}: no vector for {_some(absent)}; records.parquet says what became of a record")
        rows = np.array([self._row_by_id[id] for id in ids], dtype=np.int64)
        if (rows < 0).any():
            several = [id for id, row in zip(ids, rows, strict=True) if row < 0]
            raise UserError(
                f"{self.path}: records with different sequences share the id {_some(several)}; find their rows by "
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
            f"{path}: there is no such file; give a master .h5, its .parquet, or the folder that holds them"
        )
    return path


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
