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
"""A part is published at the latest when it holds this much as fp32; bounds the job's memory."""
_BYTES_AT_ONCE = 4 << 20
"""Of matrices that are put in order, summed and written before others: as much as stays in a
processor's cache.
"""


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
    counts = np.zeros(0, dtype=np.int64)
    for name in filter(has_matrix, fingerprint.representations):
        found = np.array([len(rows.representations[name][i]) for i in order], dtype=np.int64)
        if len(counts) and not np.array_equal(counts, found):
            raise ValueError(f"{name}: other numbers of residues than the layer before")
        counts = found
    offset = np.concatenate(([0], np.cumsum(counts))) if len(counts) else None
    columns = Columns(keys, rows.length[order], rows.windows[order], offset)
    with connect(path, "w") as file:
        dims = {
            name: np.shape(rows.representations[name][0])[-1]
            for name in fingerprint.representations
        }
        create_part(file, columns, dims, fingerprint, provenance)
        for name in fingerprint.representations:
            values = rows.representations[name]
            if has_matrix(name):
                _write_matrices(file, name, [values[i] for i in order], counts, fingerprint)
            else:
                bits = encode(np.asarray(values)[order], fingerprint.storage_dtype)
                write_bits(file["representations"][name], 0, bits)
                write_checksums(file, name, 0, bits, counts)


def _write_matrices(
    file: h5py.File,
    name: str,
    matrices: Sequence[Array],
    counts: NDArray[np.int64],
    fingerprint: Fingerprint,
) -> None:
    """Write the flat rows of matrices, and their checksums, some matrices at a time."""
    begin = row = 0
    while begin < len(matrices):
        end, size = begin + 1, matrices[begin].nbytes
        while end < len(matrices) and size + matrices[end].nbytes <= _BYTES_AT_ONCE:
            size += matrices[end].nbytes
            end += 1
        bits = encode(np.concatenate(matrices[begin:end]), fingerprint.storage_dtype)
        write_bits(file["representations"][name], row, bits)
        write_checksums(file, name, begin, bits, counts[begin:end])
        begin, row = end, row + len(bits)


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
