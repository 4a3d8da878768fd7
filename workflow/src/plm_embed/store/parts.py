"""A part: one immutable HDF5 file with the vectors of some keys, sorted by key. A master has the
same layout.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import EMBED_AGAIN, StoreError
from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.keys import Keys, find, increasing
from plm_embed.store import checksums
from plm_embed.store.hdf5 import (
    DAMAGES,
    Array,
    Extent,
    Numbers,
    connect,
    create_dataset,
    decode,
    encode,
    flat_rows,
    storage_dtype,
    take_bits,
    write_bits,
)

SCHEMA_VERSION = 1
BYTES_PER_PART = 512 << 20
"""A part is published at the latest when it holds this much as fp32; bounds the job's memory."""


def parts_folder(store: Path, fingerprint: Fingerprint) -> Path:
    """Return where the parts of one fingerprint lie in a store."""
    return store / fingerprint.id / "parts"


class DamagedPartError(StoreError):
    """A part or master that is truncated, corrupt, or none at all."""


@dataclass(frozen=True)
class PartInfo:
    """A published part as completion records name it: file name, rows, size in bytes, SHA-256."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PartRows:
    """Vectors on their way into a part, in any order.

    keys S64 (n,); length int32 (n,): residues of the sequence; windows int32 (n,): 1 = embedded in
    one piece, k > 1 = in k windows, 0 = cropped. representations: every name of the fingerprint, as
    (n, D) numbers when pooled, as a list of n arrays (L, D) when per residue.
    """

    keys: Keys
    length: NDArray[np.int32]
    windows: NDArray[np.int32]
    representations: Mapping[str, Array | Sequence[Array]]
    scores: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """The scores of the fingerprint, (n,) each."""


def column_types(fingerprint: Fingerprint) -> dict[str, str]:
    """Return the columns of a part or master, a number or key per row, and their types."""
    columns = {"emb_keys": "S64", "length": "<i4", "windows": "<i4"}
    return columns | dict.fromkeys(fingerprint.scores, "<f4")


def create_datasets(file: h5py.File, fingerprint: Fingerprint, count: int) -> None:
    """Create the columns of `count` keys, and the datasets of all checksums."""
    columns, group = column_types(fingerprint), file.create_group(checksums.GROUP)
    for name in (*columns, *fingerprint.representations):
        create_dataset(group, name, (count,), "<u8")
    for name, kind in columns.items():
        create_dataset(file, name, (count,), kind)


def write_part(
    path: Path, rows: PartRows, fingerprint: Fingerprint, provenance: dict[str, Any]
) -> None:
    """Write a part, sorted by key, its vectors rounded to the fingerprint's storage type. Equal
    rows give equal bytes.

    Not atomic: meant for local scratch, from where `Store.publish` takes it. Rows that do not fit
    together, repeated keys and other representations than the fingerprint's raise ValueError.
    """
    names, dtype = fingerprint.representations, fingerprint.storage_dtype
    data = rows.representations
    columns = {"emb_keys": rows.keys, "length": rows.length, "windows": rows.windows, **rows.scores}
    order = np.argsort(rows.keys, kind="stable")
    count, keys = len(order), rows.keys[order]
    if not count or (keys[1:] == keys[:-1]).any():
        raise ValueError("a part needs at least one key, and each key once")
    if {*data, *rows.scores} != {*names, *fingerprint.scores}:
        raise ValueError(f"vectors for {list(data)}, expected {names}")
    if any(len(values) != count for values in (*columns.values(), *data.values())):
        raise ValueError("keys, lengths, windows and vectors differ in number")
    heights = [[len(data[name][i]) for i in order] for name in filter(has_matrix, names)]
    if any(counts != heights[0] for counts in heights):
        raise ValueError("the matrices of a sequence differ in their numbers of rows")
    offset = np.concatenate([[0], *(np.cumsum(counts) for counts in heights[:1])])
    with connect(path, "w") as file:
        create_datasets(file, fingerprint, count)
        for name, values in columns.items():
            file[name][...] = values[order]
            checksums.write(file, name, 0, checksums.of_rows(values[order]))
        if heights:
            create_dataset(file, "offset", (count + 1,), "<i8")[...] = offset
        group = file.create_group("representations")
        for name in names:
            width = np.shape(data[name][0])[-1]
            if not has_matrix(name):
                bits = encode(np.asarray(data[name])[order], dtype)
                write_bits(create_dataset(group, name, (count, width), dtype), 0, bits)
                checksums.write(file, name, 0, checksums.of_rows(bits))
                continue
            dataset, sums = create_dataset(group, name, (int(offset[-1]), width), dtype), []
            for i, first in zip(order, offset, strict=False):
                bits = encode(data[name][i], dtype)
                write_bits(dataset, first, bits)
                sums.append(checksums.of_sequences(bits, np.array([len(bits)])))
            checksums.write(file, name, 0, np.concatenate(sums))
        file.attrs["schema_version"] = SCHEMA_VERSION
        file.attrs["fingerprint"] = fingerprint.to_json()
        file.attrs["provenance"] = json.dumps(provenance, sort_keys=True)


class Part(AbstractContextManager["Part"]):
    """One part file, or a master, open for reading; a context manager. Whatever is read is compared
    with its checksum. A truncated or foreign file raises DamagedPartError, with the remedy.

    path; fingerprint; attributes and provenance (dict); count: rows; names: its representations;
    matrices: those with a matrix per sequence; dims {name: D}; vectors: the datasets, (n, D), or
    flat (R, D) of matrices.
    """

    def __init__(self, path: Path, remedy: str = EMBED_AGAIN) -> None:
        self.path, self._remedy = path, remedy
        with ExitStack() as stack, self._reading():
            self._file = stack.enter_context(connect(path))
            checksums.check_attributes(self._file)
            self.attributes: Mapping[str, Any] = dict(self._file.attrs)
            self.fingerprint = Fingerprint.from_json(self.attributes["fingerprint"])
            self.provenance: dict[str, Any] = json.loads(self.attributes.get("provenance", "{}"))
            self.names = self.fingerprint.representations
            self.matrices = frozenset(filter(has_matrix, self.names))
            keys, dtype = self._file["emb_keys"], self.fingerprint.storage_dtype
            self.count: int = keys.shape[0]
            if keys.dtype != np.dtype("S64"):
                raise ValueError(f"its keys are {keys.dtype}, not 64 characters each")
            self.vectors = {name: self._file[f"representations/{name}"] for name in self.names}
            self.dims: dict[str, int] = {name: data.shape[1] for name, data in self.vectors.items()}
            for name, data in self.vectors.items():
                if (stored := storage_dtype(data)) != dtype:
                    raise ValueError(f"{name} is stored as {stored}, its fingerprint says {dtype}")
                if name not in self.matrices and data.shape[0] != self.count:
                    raise ValueError(f"{name} has {data.shape[0]} rows for {self.count} keys")
            self._extents: dict[str, Extent | None] = {}
            # opening one takes longer than reading a row
            self._sums: dict[str, h5py.Dataset] = dict(self._file.get(checksums.GROUP, {}))
            stack.pop_all()  # the file stays open

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what h5py says about a bad file into DamagedPartError, and leave errors of the
        system apart from it.
        """
        try:
            yield
        except DAMAGES as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StoreError(f"{self.path}: cannot be read: {error}", path=self.path) from error
            raise DamagedPartError(
                f"{self.path}: damaged, or not a file of embeddings: {error}",
                path=self.path,
                remedy=self._remedy,
            ) from error

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def check(self, fingerprint: Fingerprint) -> None:
        """Raise StoreError, with the difference in words, unless the part has this fingerprint."""
        if self.fingerprint != fingerprint:
            differences = "; ".join(self.fingerprint.differences(fingerprint))
            raise StoreError(
                f"{self.path}: a part of another fingerprint ({differences})",
                path=self.path,
                remedy="move it out of this store",
            )

    @cached_property
    def keys(self) -> Keys:
        """Keys, S64 (n,), strictly increasing."""
        return self._keys_between(0, self.count)

    def _keys_between(self, first: int, stop: int) -> Keys:
        keys: Keys = self.column_at("emb_keys", np.arange(first, stop))
        with self._reading():
            if not increasing(keys):
                raise ValueError("its keys are not sorted")
        return keys

    def locate(self, keys: Keys) -> Numbers:
        """Return the row of each key in this part, -1 where it has none; keys: S64, sorted, each
        once.

        Of a large part only the range is read.
        """
        rows = np.full(len(keys), -1, dtype=np.int64)
        first, stop = 0, self.count
        if stop > 4 * len(keys) > 0:
            with self._reading():
                column = self._file["emb_keys"]
                first = bisect_left(column, keys[0])
                stop = bisect_right(column, keys[-1], first)
        held = self._keys_between(first, stop)
        if len(held) < len(keys):  # fewer to search for: a bucket's keys are in several parts
            places, stored = find(keys, held)
            rows[places[stored]] = first + np.flatnonzero(stored)
        else:
            places, stored = find(held, keys)
            rows[stored] = first + places[stored]
        return rows

    def column_at(self, name: str, rows: Numbers) -> Array:
        """Read some rows (increasing) of a column such as `length`."""
        with self._reading():
            values = take_bits(self._file[name], rows)
            if name != "offset":
                checksums.check(name, rows, self.sums_at(name, rows), checksums.of_rows(values))
        return values

    def matrix_rows(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return where each of these rows (increasing) begins in the per-residue datasets, and how
        many rows it has there.
        """
        starts, ends = self.column_at("offset", rows), self.column_at("offset", rows + 1)
        with self._reading():
            most = min(len(self.vectors[name]) for name in self.matrices)
            if (ends <= starts).any() or starts.min(initial=0) < 0 or ends.max(initial=0) > most:
                raise ValueError("offset does not say where its sequences begin")
        return starts, ends - starts

    def sums_at(self, name: str, rows: Numbers) -> checksums.Sums | None:
        """Read the checksums that the part keeps for rows (increasing) of a representation; None
        when it keeps none.
        """
        with self._reading():
            return take_bits(self._sums[name], rows) if self._sums else None

    def bits(self, name: str, rows: Numbers) -> Array:
        """Read the stored bits of the given rows (strictly increasing): (k, D), or flat (r, D) when
        per residue.
        """
        with self._reading():
            if name in self.matrices:
                starts, counts = self.matrix_rows(rows)
                bits = take_bits(self.vectors[name], flat_rows(starts, counts))
                sums = checksums.of_sequences(bits, counts)
            else:
                bits = take_bits(self.vectors[name], rows)
                sums = checksums.of_rows(bits)
            checksums.check(name, rows, self.sums_at(name, rows), sums)
        return bits

    def unchecked_bits(self, name: str, rows: Numbers) -> Array:
        """Read stored bits without a look at checksums; rows (strictly increasing) are those of the
        dataset, flat when per residue. Threads read at the same time.
        """
        with self._reading():
            if name not in self._extents:
                self._extents[name] = Extent.of(self.vectors[name])
            return take_bits(self._extents[name] or self.vectors[name], rows)

    def rows(self, name: str, rows: Numbers) -> Array | list[Array]:
        """Read the vectors of the given rows, in any order: (k, D), or a list of k matrices (L, D)
        when per residue.
        """
        unique, back = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        values = decode(self.bits(name, unique), self.fingerprint.storage_dtype)
        if name not in self.matrices:
            return values[back]
        matrices = np.split(values, np.cumsum(self.matrix_rows(unique)[1])[:-1])
        return [matrices[i] for i in back]
