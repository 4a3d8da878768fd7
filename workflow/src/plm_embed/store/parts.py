"""A part: one immutable HDF5 file with the vectors of some keys, sorted by key. How it is read;
`write_parts` writes it.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import EMBED_AGAIN, StoreError
from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.keys import Keys, find, increasing
from plm_embed.store import checksums
from plm_embed.store.hdf5 import (
    Array,
    connect,
    decode,
    flat_rows,
    storage_dtype,
    take_bits,
)


class DamagedPartError(StoreError):
    """A part file that is truncated, corrupt, or no part at all."""


class Part:
    """One part file, or a master, which has the same layout, open for reading. Columns are read
    when first asked for.

    path; fingerprint; provenance (dict); names: its representations; count: rows; dims {name: D}.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._vectors: dict[str, h5py.Dataset] = {}
        with self._reading():
            self._file = connect(path)
        try:
            self._describe()
        except BaseException:
            self._file.close()
            raise

    def _describe(self) -> None:
        with self._reading():
            self.fingerprint = Fingerprint.from_json(self._file.attrs["fingerprint"])
            self.provenance: dict[str, Any] = json.loads(self._file.attrs.get("provenance", "{}"))
            keys = self._file["emb_keys"]
            self.count: int = keys.shape[0]
            if keys.dtype != np.dtype("S64"):
                raise ValueError(f"its keys are {keys.dtype}, not 64 characters each")
            checksums.check_attributes(self._file)
            self.names = self.fingerprint.representations
            self.dims: dict[str, int] = {name: self.vectors(name).shape[1] for name in self.names}
            for name in self.names:
                dataset, wanted = self.vectors(name), self.fingerprint.storage_dtype
                if storage_dtype(dataset) != wanted:
                    raise ValueError(
                        f"{name} is stored as {storage_dtype(dataset)}, its fingerprint says "
                        f"{wanted}"
                    )
                if not has_matrix(name) and dataset.shape[0] != self.count:
                    raise ValueError(f"{name} has {dataset.shape[0]} rows for {self.count} keys")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what h5py says about a bad file into DamagedPartError, and leave errors of the
        system apart from it.
        """
        try:
            yield
        except OSError as error:
            if error.errno is not None:
                raise StoreError(f"{self.path}: cannot be read: {error}", path=self.path) from error
            raise self._damage(error) from error
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise self._damage(error) from error

    def _damage(self, error: Exception) -> DamagedPartError:
        what = f"{self.path}: truncated, corrupt or not a part of a store ({error})"
        return DamagedPartError(what, path=self.path, remedy=EMBED_AGAIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def vectors(self, name: str) -> h5py.Dataset:
        """The dataset of a representation: (n, D), or flat (R, D) when per residue."""
        if name not in self._vectors:
            self._vectors[name] = self._file[f"representations/{name}"]
        return self._vectors[name]

    @cached_property
    def keys(self) -> Keys:
        """S64 (n,), strictly increasing."""
        keys: Keys = self._column("emb_keys")
        with self._reading():
            self._check("emb_keys", np.arange(self.count), keys)
            if not increasing(keys):
                raise ValueError("its keys are not sorted")
        return keys

    def locate(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key in this part, -1 where it has none; keys: S64, sorted, each once.

        Of a large part only the range is read.
        """
        rows = np.full(len(keys), -1, dtype=np.int64)
        if not len(keys):
            return rows
        with self._reading():
            column = self._file["emb_keys"]
            first, stop = 0, self.count
            if self.count > 4 * len(keys):
                first = bisect_left(column, keys[0])
                stop = bisect_right(column, keys[-1], first)
            held: Keys = column[first:stop]
            self._check("emb_keys", np.arange(first, stop), held)
            if not increasing(held):
                raise ValueError("its keys are not sorted")
        if len(held) < len(keys):  # fewer to search for: a bucket's keys are in several parts
            at, found = find(keys, held)
            rows[at[found]] = first + np.flatnonzero(found)
        else:
            at, found = find(held, keys)
            rows[found] = first + at[found]
        return rows

    @cached_property
    def length(self) -> NDArray[np.int32]:
        """Residues of each sequence (n,), before cropping."""
        return self.column_at("length", np.arange(self.count))

    @cached_property
    def windows(self) -> NDArray[np.int32]:
        """(n,): 1 = embedded in one piece, k > 1 = in k windows, 0 = cropped."""
        return self.column_at("windows", np.arange(self.count))

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        """(n + 1,): where each sequence begins in the flat per-residue datasets."""
        offset: NDArray[np.int64] = self._column("offset")
        with self._reading():
            ends = {self.vectors(name).shape[0] for name in self.names if has_matrix(name)}
            if (
                len(offset) != self.count + 1
                or (np.diff(offset) <= 0).any()
                or {int(offset[-1])} != ends
            ):
                raise ValueError("offset does not say where its sequences begin")
        return offset

    @property
    def attributes(self) -> Mapping[str, Any]:
        """All attributes of the file."""
        with self._reading():
            return dict(self._file.attrs)

    @property
    def devices(self) -> set[str]:
        """What computed the vectors, as far as the part or master says."""
        stated = self.attributes.get("devices", self.provenance.get("device", ()))
        return {stated} if isinstance(stated, str) else {str(name) for name in stated}

    def rows_between(self, low: str, high: str | None) -> NDArray[np.int64]:
        """The rows whose keys are at least `low` and less than `high` (beginnings of keys; None: no
        limit).
        """
        with self._reading():
            column = self._file["emb_keys"]
            first = bisect_left(column, low.encode())
            stop = self.count if high is None else bisect_left(column, high.encode(), first)
        return np.arange(first, stop, dtype=np.int64)

    def column_at(self, name: str, rows: NDArray[np.int64]) -> Array:
        """Some rows (increasing) of a column such as `length`; only the range from the first to the
        last is read.
        """
        with self._reading():
            first, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
            span: Array = self._file[name][first:stop]
            found: Array = span[rows - first]
            if name in checksums.COLUMNS:
                self._check(name, rows, found)
        return found

    def sums_at(self, name: str, rows: NDArray[np.int64]) -> checksums.Sums | None:
        """The checksums that the part keeps for rows (increasing) of a representation; None when it
        keeps none.
        """
        with self._reading():
            return checksums.kept(self._file, name, rows)

    def _check(
        self,
        name: str,
        rows: NDArray[np.int64],
        found: Array,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        """ValueError when what was found in rows (increasing) is not what was written, as far as
        the file can tell.
        """
        sums = checksums.of_rows(found) if counts is None else checksums.of_sequences(found, counts)
        checksums.check(name, rows, checksums.kept(self._file, name, rows), sums)

    def residues_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many rows of the per-residue datasets belong to each of these rows (increasing)."""
        counts: NDArray[np.int64] = self.column_at("offset", rows + 1) - self.column_at(
            "offset", rows
        )
        return counts

    def _column(self, name: str) -> Array:
        with self._reading():
            column: Array = self._file[name][...]
        return column

    def bits(self, name: str, indices: NDArray[np.int64]) -> Array:
        """Stored bits of the given rows (strictly increasing): (k, D), or flat (r, D) when per
        residue.
        """
        flat = has_matrix(name)
        rows = flat_rows(self.offset, indices) if flat else indices
        with self._reading():
            bits = take_bits(self.vectors(name), rows)
            self._check(
                name,
                indices,
                bits,
                self.offset[indices + 1] - self.offset[indices] if flat else None,
            )
        return bits

    def rows(self, name: str, indices: NDArray[np.int64]) -> Array | list[Array]:
        """Vectors of the given rows, in any order: (k, D), or a list of k matrices (L, D) when per
        residue.
        """
        unique, back = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        values = decode(self.bits(name, unique), self.fingerprint.storage_dtype)
        if not has_matrix(name):
            return values[back]
        ends = np.cumsum(self.offset[unique + 1] - self.offset[unique])
        matrices = np.split(values, ends[:-1])
        return [matrices[i] for i in back]

    def check(self, fingerprint: Fingerprint) -> None:
        """Raise StoreError, with the difference in words, unless the part has this fingerprint."""
        if self.fingerprint != fingerprint:
            differences = "; ".join(self.fingerprint.differences(fingerprint))
            raise StoreError(
                f"{self.path}: a part of another fingerprint ({differences})",
                path=self.path,
                remedy="move it out of this store",
            )


def read_part(path: Path) -> Part:
    """Open a part (a context manager). A truncated or foreign file raises DamagedPartError, which
    names it.
    """
    return Part(path)
