"""Two masters side by side: the same keys, the same vectors, and if not, what differs and by how
much.
"""

import heapq
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.io.parquet import read_batches
from plm_embed.keys import Keys
from plm_embed.reading.find import find_master, gather_again
from plm_embed.store import checksums
from plm_embed.store.hdf5 import Array, decode, flat_rows, open_hdf5, storage_dtype, take_bits
from plm_embed.wording import some

Numbers = NDArray[np.int64]
_KEYS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 64 << 20
LISTED = 20
"""So many keys, and so many of the vectors that differ most, are listed."""


@dataclass
class Compared:
    """One representation in both masters, over the keys that both have.

    equal: the same numbers; within: different ones, but by no more than the tolerance; different:
    the rest. max_abs and min_cosine are over all; worst: the different ones that differ most.
    """

    equal: int = 0
    within: int = 0
    different: int = 0
    max_abs: float = 0.0
    min_cosine: float = 1.0
    worst: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Difference:
    """What `compare` finds. Counts of keys, the first that only one has with the ids of their
    records, and Compared by representation.
    """

    keys_both: int = 0
    only_first: int = 0
    only_second: int = 0
    examples_only_first: list[str] = field(default_factory=list)
    examples_only_second: list[str] = field(default_factory=list)
    ids_of_examples: dict[str, list[str]] = field(default_factory=dict)
    fingerprint: list[str] = field(default_factory=list)
    representations_only_first: list[str] = field(default_factory=list)
    representations_only_second: list[str] = field(default_factory=list)
    representations: dict[str, Compared] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether both have the same keys and representations, and no vector differs by more than
        the tolerance.
        """
        return not (
            self.only_first
            or self.only_second
            or self.representations_only_first
            or self.representations_only_second
            or any(compared.different for compared in self.representations.values())
        )

    def to_json(self) -> dict[str, Any]:
        return {"equal": self.equal} | asdict(self)


def compare(first: Path, second: Path, tolerance: float) -> Difference:
    """Compare two masters, or those of two folders with one, row by row, in bounded memory.

    tolerance: the largest difference of two numbers that counts as equal. NaN equals NaN.
    """
    found = Difference()
    first, second = find_master(first), find_master(second)
    with _opened(first) as a, _opened(second) as b:
        _compare_settings(found, (first, second), (a, b))
        for keys, rows in _common(found, a["emb_keys"], b["emb_keys"]):
            for name, compared in found.representations.items():
                _compare_rows(compared, _Pair(a, b, name), keys, rows, tolerance)
    _name_records(found, first.with_suffix(".parquet"), second.with_suffix(".parquet"))
    return found


def _opened(master: Path) -> AbstractContextManager[h5py.File]:
    return open_hdf5(master, remedy=gather_again(master))


def _compare_settings(
    found: Difference, paths: tuple[Path, Path], files: tuple[h5py.File, h5py.File]
) -> None:
    for path, file in zip(paths, files, strict=True):
        if not {"emb_keys", "representations"} <= set(file):
            raise StoreError(
                f"{path}: no master of embeddings (no emb_keys or representations)", path=path
            )
    prints = [Fingerprint.from_json(file.attrs["fingerprint"]) for file in files]
    found.fingerprint = prints[0].differences(prints[1])
    first, second = (file["representations"] for file in files)
    found.representations_only_first = sorted(set(first) - set(second))
    found.representations_only_second = sorted(set(second) - set(first))
    for name in sorted(set(first) & set(second)):
        if first[name].shape[1] != second[name].shape[1] and first[name].size and second[name].size:
            raise PlmEmbedError(
                f"{paths[0]} and {paths[1]}: the vectors of {name} have other dimensions"
            )
        found.representations[name] = Compared()


def _common(
    found: Difference, first: h5py.Dataset, second: h5py.Dataset
) -> Iterator[tuple[Keys, tuple[Numbers, Numbers]]]:
    """Keys that both have, with their rows in either; the others are counted."""
    i, j = 0, 0
    while i < len(first) or j < len(second):
        a: Keys = first[i : i + _KEYS_AT_ONCE]
        b: Keys = second[j : j + _KEYS_AT_ONCE]
        if len(a) and len(b):
            last = min(a[-1], b[-1])
            a, b = (keys[: np.searchsorted(keys, last, side="right")] for keys in (a, b))
        both, at_a, at_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        found.keys_both += len(both)
        found.only_first += len(a) - len(both)
        found.only_second += len(b) - len(both)
        for examples, keys in ((found.examples_only_first, a), (found.examples_only_second, b)):
            alone = keys[~np.isin(keys, both)][: LISTED - len(examples)]
            examples.extend(key.decode() for key in alone)
        yield both, (i + at_a, j + at_b)
        i, j = i + len(a), j + len(b)


class _Pair:
    """One representation in both files."""

    def __init__(self, first: h5py.File, second: h5py.File, name: str) -> None:
        self._files = first, second
        self._name = name
        self._datasets = [file["representations"][name] for file in self._files]
        self._flat = has_matrix(name)

    def counts(self, which: int, rows: Numbers) -> Numbers:
        """Rows of the dataset that belong to each key."""
        return (
            np.diff(self._offset(which, rows))[rows - rows[0]] if self._flat else np.ones_like(rows)
        )

    def numbers(self, which: int, rows: Numbers) -> Array:
        """All of them, one after the other, as float32."""
        dataset, file = self._datasets[which], self._files[which]
        if self._flat:
            offset = self._offset(which, rows)
            bits = take_bits(dataset, flat_rows(offset, rows - rows[0]))
            found = checksums.of_sequences(bits, np.diff(offset)[rows - rows[0]])
        else:
            bits = take_bits(dataset, rows)
            found = checksums.of_rows(bits)
        try:
            checksums.check(self._name, rows, checksums.kept(file, self._name, rows), found)
        except ValueError as error:
            raise StoreError(
                f"{file.filename}: damaged ({error})",
                remedy=gather_again(Path(file.filename)),
                path=file.filename,
            ) from None
        return decode(bits, storage_dtype(dataset)).astype(np.float32, copy=False)

    def _offset(self, which: int, rows: Numbers) -> Numbers:
        offset: Numbers = self._files[which]["offset"][int(rows[0]) : int(rows[-1]) + 2]
        return offset

    @property
    def row_bytes(self) -> int:
        return 4 * int(self._datasets[0].shape[1])


def _compare_rows(
    compared: Compared, pair: _Pair, keys: Keys, rows: tuple[Numbers, Numbers], tolerance: float
) -> None:
    if not len(keys):
        return
    counts = pair.counts(0, rows[0])
    same = counts == pair.counts(1, rows[1])
    for at in np.flatnonzero(~same).tolist():
        compared.different += 1
        _list(compared, keys[at], float("inf"), 0.0)
    kept = np.flatnonzero(same)
    pieces = np.cumsum(counts[kept] * pair.row_bytes) // _BYTES_AT_ONCE
    for piece in np.split(kept, np.flatnonzero(np.diff(pieces)) + 1):
        if not len(piece):
            continue
        a, b = (pair.numbers(which, rows[which][piece]) for which in (0, 1))
        heads = np.cumsum(counts[piece]) - counts[piece]
        with np.errstate(invalid="ignore"):
            apart = np.where(np.isnan(a) & np.isnan(b), 0, np.abs(a - b)).max(axis=1)
        largest = np.maximum.reduceat(np.where(np.isnan(apart), np.inf, apart), heads)
        cosine = _cosines(a, b, heads)
        compared.equal += int((largest == 0).sum())
        compared.within += int(((largest > 0) & (largest <= tolerance)).sum())
        compared.different += int((largest > tolerance).sum())
        compared.max_abs = max(compared.max_abs, float(largest.max()))
        compared.min_cosine = min(compared.min_cosine, float(cosine.min()))
        worst = np.argsort(-largest, kind="stable")[:LISTED]
        for at in worst[largest[worst] > tolerance].tolist():
            _list(compared, keys[piece[at]], float(largest[at]), float(cosine[at]))


def _cosines(a: Array, b: Array, heads: Numbers) -> NDArray[np.float64]:
    """Of each key's numbers, which begin at the rows `heads`; 1 where both are zero, 0 where NaN or
    one is zero.
    """

    def dot(x: Array, y: Array) -> NDArray[np.float64]:
        products: NDArray[np.float64] = np.add.reduceat(
            np.einsum("ij,ij->i", x, y, dtype=np.float64), heads
        )
        return products

    with np.errstate(invalid="ignore", divide="ignore"):
        norms = dot(a, a), dot(b, b)
        cosine = dot(a, b) / np.sqrt(norms[0] * norms[1])
    found: NDArray[np.float64] = np.where(
        (norms[0] == 0) & (norms[1] == 0), 1.0, np.nan_to_num(np.minimum(cosine, 1))
    )
    return found


def _list(compared: Compared, key: bytes, max_abs: float, cosine: float) -> None:
    compared.worst.append({"key": key.decode(), "max_abs": max_abs, "cosine": cosine})
    compared.worst = heapq.nlargest(
        LISTED, compared.worst, key=lambda entry: (entry["max_abs"], entry["key"])
    )


def _name_records(found: Difference, first: Path, second: Path) -> None:
    """Add to each listed key the ids of its records, where the index that knows them is there."""
    listed = [entry for compared in found.representations.values() for entry in compared.worst]
    ids = _ids([*(entry["key"] for entry in listed), *found.examples_only_first], first)
    ids |= _ids(found.examples_only_second, second)
    for entry in listed:
        entry["ids"] = ids[entry["key"]]
    examples = (*found.examples_only_first, *found.examples_only_second)
    found.ids_of_examples = {key: ids[key] for key in examples}


def _ids(keys: list[str], index: Path) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {key: [] for key in keys}
    if not ids or not index.is_file():
        return ids
    wanted = pa.array(sorted(ids))
    for table in read_batches(index, ["id", "cache_key"], gather_again(index)):
        for row in table.filter(pc.is_in(table["cache_key"], wanted)).to_pylist():
            ids[row["cache_key"]].append(row["id"])
    return ids


def _named(key: str, ids: list[str]) -> str:
    return f"{key} ({some(ids)})" if ids else key


def in_words(found: Difference) -> str:
    """The difference as a few lines of text."""
    lines = [f"keys: {found.keys_both:,} in both, {found.only_first:,} only in the first, "
             f"{found.only_second:,} only in the second"]  # fmt: skip
    ids = found.ids_of_examples
    for which, examples in (
        ("first", found.examples_only_first),
        ("second", found.examples_only_second),
    ):
        lines += [f"  only in the {which}: {_named(key, ids[key])}" for key in examples[:3]]
    lines += [f"settings: {difference}" for difference in found.fingerprint]
    for which, names in (
        ("first", found.representations_only_first),
        ("second", found.representations_only_second),
    ):
        lines += [f"{name}: only in the {which}" for name in names]
    for name, compared in found.representations.items():
        lines.append(
            f"{name}: {compared.equal:,} equal, {compared.within:,} within the tolerance, "
            f"{compared.different:,} different; largest difference {compared.max_abs:.3g}, "
            f"smallest cosine {compared.min_cosine:.6f}"
        )
        for entry in compared.worst:
            named = _named(entry["key"], entry["ids"])
            lines.append(f"  {named}: {entry['max_abs']:.3g}, cosine {entry['cosine']:.6f}")
    return "\n".join([*lines, "equal" if found.equal else "different"])
