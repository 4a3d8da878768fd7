"""A part on its way into a store: its rows are collected, sorted and written. `parts` reads it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.keys import Keys
from plm_embed.store import checksums
from plm_embed.store.hdf5 import (
    Array,
    connect,
    create_column,
    create_vectors,
    encode,
    write_bits,
)

SCHEMA_VERSION = 1
BYTES_PER_PART = 512 << 20
"""A part is published at the latest when it holds this much; bounds the job's memory."""


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


def write_part(
    path: Path, rows: PartRows, fingerprint: Fingerprint, provenance: dict[str, Any]
) -> None:
    """Write a part, sorted by key, its vectors rounded to the fingerprint's storage type. Equal
    rows give equal bytes.

    Not atomic: meant for local scratch, from where `Store.publish` takes it. Rows that do not fit
    together, repeated keys and other representations than the fingerprint's raise ValueError.
    """
    order = np.argsort(rows.keys, kind="stable").astype(np.int64)
    keys = rows.keys[order]
    if not len(keys) or (keys[1:] == keys[:-1]).any():
        raise ValueError("a part needs at least one key, and each key once")
    if set(rows.representations) != set(fingerprint.representations):
        raise ValueError(
            f"vectors for {list(rows.representations)}, expected {fingerprint.representations}"
        )
    if any(
        len(part) != len(keys)
        for part in (rows.length, rows.windows, *rows.representations.values())
    ):
        raise ValueError("keys, lengths, windows and vectors differ in number")
    vectors = {
        name: _stored(name, rows.representations[name], order)
        for name in fingerprint.representations
    }
    offset = np.zeros(1, dtype=np.int64)
    for name in filter(has_matrix, fingerprint.representations):
        counts = [len(rows.representations[name][i]) for i in order]
        if len(offset) > 1 and not np.array_equal(np.diff(offset), counts):
            raise ValueError(f"{name}: other numbers of residues than the layer before")
        offset = np.cumsum([0, *counts], dtype=np.int64)
    columns = Columns(
        keys, rows.length[order], rows.windows[order], offset if len(offset) > 1 else None
    )
    with connect(path, "w") as file:
        dims = {name: values.shape[1] for name, values in vectors.items()}
        create_part(file, columns, dims, fingerprint, provenance)
        for name, values in vectors.items():
            bits = encode(values, fingerprint.storage_dtype)
            write_bits(file["representations"][name], 0, bits)
            write_checksums(file, name, 0, bits, np.diff(offset))


def _stored(name: str, values: Array | Sequence[Array], order: NDArray[np.int64]) -> Array:
    """All rows of a representation in the given order of its sequences: (n, D), or flat (R, D) when
    per residue.
    """
    return (
        np.concatenate([values[i] for i in order])
        if has_matrix(name)
        else np.asarray(values)[order]
    )


class Columns(NamedTuple):
    """What a part says about each of its keys; offset (n + 1,): where their per-residue rows begin,
    if any.
    """

    keys: Keys
    length: NDArray[np.int32]
    windows: NDArray[np.int32]
    offset: NDArray[np.int64] | None


def create_part(
    file: h5py.File,
    columns: Columns,
    dims: Mapping[str, int],
    fingerprint: Fingerprint,
    provenance: dict[str, Any],
) -> None:
    """Write a part but for its vectors and their checksums, for which there is room then: `dims`
    (D) by name.
    """
    count = len(columns.keys)
    checksums.create(file, fingerprint.representations, count)
    for name, kind, values in zip(
        checksums.COLUMNS, ("S64", "<i4", "<i4"), columns[:3], strict=True
    ):
        create_column(file, name, count, kind)[...] = values
        checksums.write(file, name, 0, checksums.of_rows(values))
    if columns.offset is not None:
        create_column(file, "offset", count + 1, "<i8")[...] = columns.offset
    group = file.create_group("representations")
    for name in fingerprint.representations:
        rows = count if columns.offset is None or not has_matrix(name) else int(columns.offset[-1])
        create_vectors(group, name, (rows, dims[name]), fingerprint.storage_dtype)
    file.attrs["schema_version"] = SCHEMA_VERSION
    file.attrs["fingerprint"] = fingerprint.to_json()
    file.attrs["provenance"] = json.dumps(provenance, sort_keys=True)


def write_checksums(
    file: h5py.File, name: str, start: int, bits: Array, residues: NDArray[np.int64]
) -> None:
    """Keep the checksums of the keys from row `start` on, of which `bits` are all rows of a
    representation.

    residues (k,): rows that each of them has per residue.
    """
    flat = has_matrix(name)
    checksums.write(
        file,
        name,
        start,
        checksums.of_sequences(bits, residues) if flat else checksums.of_rows(bits),
    )
