"""A checksum for each row of each dataset, kept beside it in the same file: whoever reads a row
sees a changed bit.

The group `checksums` has, for each column and each representation, uint64 (n,): the sum, modulo
2^64, of the row's 64-bit words, each times an odd number of its own, so that one flipped bit always
shows. Per residue, the sums of a sequence's rows are summed in the same way. Files of version 0.1
have no such group, and say nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.store.hdf5 import Array, Numbers, write_bits

GROUP = "checksums"
SEAL = "attributes_sha256"
Sums = NDArray[np.uint64]
_START = np.uint64(0x9E3779B97F4A7C15)  # so that zeros do not vouch for zeros


@lru_cache(16)
def _weights(count: int) -> Sums:
    """Return odd numbers (count,) that look random, the same first ones for every count, by
    SplitMix64.
    """
    with np.errstate(over="ignore"):
        mixed = np.arange(1, count + 1, dtype=np.uint64) * _START
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def of_rows(values: Array) -> Sums:
    """Return the checksum of each row (n,) of a column (n,) or of stored bits (n, D)."""
    if not values.size:
        return np.full(len(values), _START)
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    if short := -raw.shape[1] % 8:
        raw = np.pad(raw, ((0, 0), (0, short)))
    words = raw.view("<u8")
    sums: Sums = np.einsum("ij,j->i", words, _weights(words.shape[1])) + _START
    return sums


def of_sequences(bits: Array, counts: Numbers) -> Sums:
    """Return the checksum of each sequence, of which `counts` (k,) rows each, all above 0, follow
    one another in `bits`.
    """
    if not len(counts):
        return np.zeros(0, dtype=np.uint64)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(bits)) - np.repeat(starts, counts)
    sums: Sums = np.add.reduceat(of_rows(bits) * _weights(int(counts.max()))[place], starts)
    return sums


def write(file: h5py.File, name: str, start: int, sums: Sums) -> None:
    """Keep the checksums of rows `start`, ... of a column or representation."""
    write_bits(file[f"{GROUP}/{name}"], start, sums)


def check(name: str, rows: Numbers, stored: Sums | None, computed: Sums) -> None:
    """Raise ValueError unless the checksums of these rows are those that were stored, if any."""
    if stored is not None and (wrong := stored != computed).any():
        raise ValueError(f"row {rows[wrong][0]} of {name} has changed since it was written")


def check_attributes(file: h5py.File) -> None:
    """Raise ValueError when attributes have changed since they were sealed."""
    if SEAL in file.attrs and file.attrs[SEAL] != of_attributes(file.attrs):
        raise ValueError("its attributes have changed since they were written")


def of_attributes(attributes: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all attributes, which HDF5 does not protect, but the one for it."""
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in attributes.items()
        if name != SEAL
    }
    return hashlib.sha256(
        json.dumps(plain, sort_keys=True).encode("utf-8", "surrogatepass")
    ).hexdigest()
