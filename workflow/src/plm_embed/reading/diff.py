"""Two masters side by side: the same keys, the same vectors, and if not, what differs and by how
much.
"""

import heapq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import has_matrix
from plm_embed.keys import Keys, find
from plm_embed.reading.open import Embeddings, Rows
from plm_embed.store.hdf5 import Array
from plm_embed.wording import some

_KEYS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 64 << 20
LISTED = 20
"""So many keys, and so many of the vectors that differ most, are listed."""


@dataclass
class Compared:
    """Differences of one representation, over the keys that both masters have.

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
    """Differences of two masters. Counts of keys, the first that only one has with the ids of their
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
        """Return whether both have the same keys and representations, and no vector differs by more
        than the tolerance.
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
    """Compare two masters (or stores), row by row; 64 bytes of memory for each key of both.

    tolerance: the largest difference of two numbers that counts as equal. NaN equals NaN.
    """
    with Embeddings(first) as a, Embeddings(second) as b:
        places, both = find(b.keys, a.keys)
        rows = np.flatnonzero(both), places[both]
        only = np.delete(a.keys, rows[0]), np.delete(b.keys, rows[1])
        examples = [keys[:LISTED].astype(str).tolist() for keys in only]
        difference = Difference(
            keys_both=len(rows[0]),
            only_first=len(only[0]),
            only_second=len(only[1]),
            examples_only_first=examples[0],
            examples_only_second=examples[1],
            fingerprint=a.fingerprint.differences(b.fingerprint),
            representations_only_first=sorted(set(a.names) - set(b.names)),
            representations_only_second=sorted(set(b.names) - set(a.names)),
        )
        for name in sorted(set(a.names) & set(b.names)):
            if a.dim != b.dim and len(a) and len(b):
                raise PlmEmbedError(f"{a.path} and {b.path}: the vectors have other dimensions")
            difference.representations[name] = _compare_vectors((a, b), name, rows, tolerance)
        _name_records(difference, a, b)
    return difference


def _compare_vectors(
    pair: tuple[Embeddings, Embeddings], name: str, rows: tuple[Rows, Rows], tolerance: float
) -> Compared:
    """Compare a representation of the keys that have these rows in both."""
    compared = Compared()
    for start in range(0, len(rows[0]), _KEYS_AT_ONCE):
        some = [numbers[start : start + _KEYS_AT_ONCE] for numbers in rows]
        keys = pair[0].keys[some[0]]
        if has_matrix(name):
            counts, others = (
                reader.residues_at(numbers) for reader, numbers in zip(pair, some, strict=True)
            )
        else:
            counts = others = np.ones(len(keys), np.int64)
        for place in np.flatnonzero(counts != others).tolist():
            compared.different += 1
            _list(compared, keys[place], float("inf"), 0.0)
        same = np.flatnonzero(counts == others)
        sizes = np.cumsum(counts[same] * 4 * pair[0].dim) // _BYTES_AT_ONCE
        for piece in np.split(same, np.flatnonzero(np.diff(sizes)) + 1):
            if len(piece):
                a, b = (
                    reader.flat(name, numbers[piece]).astype(np.float32, copy=False)
                    for reader, numbers in zip(pair, some, strict=True)
                )
                _compare_numbers(compared, keys[piece], a, b, counts[piece], tolerance)
    return compared


def _compare_numbers(  # noqa: PLR0917
    compared: Compared, keys: Keys, a: Array, b: Array, counts: Rows, tolerance: float
) -> None:
    """Compare the numbers of some keys, which have `counts` rows each, one after the other."""
    heads = np.cumsum(counts) - counts
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
    for place in worst[largest[worst] > tolerance].tolist():
        _list(compared, keys[place], float(largest[place]), float(cosine[place]))


def _cosines(a: Array, b: Array, heads: Rows) -> NDArray[np.float64]:
    """Return the cosine of each key's numbers, which begin at the rows `heads`; 1 where both are
    zero, 0 where NaN or one is zero.
    """

    def dot(x: Array, y: Array) -> NDArray[np.float64]:
        products: NDArray[np.float64] = np.add.reduceat(
            np.einsum("ij,ij->i", x, y, dtype=np.float64), heads
        )
        return products

    with np.errstate(invalid="ignore", divide="ignore"):
        norms = dot(a, a), dot(b, b)
        cosine = dot(a, b) / np.sqrt(norms[0] * norms[1])
    bounded: NDArray[np.float64] = np.where(
        (norms[0] == 0) & (norms[1] == 0), 1.0, np.nan_to_num(np.minimum(cosine, 1))
    )
    return bounded


def _list(compared: Compared, key: bytes, max_abs: float, cosine: float) -> None:
    compared.worst.append({"key": key.decode(), "max_abs": max_abs, "cosine": cosine})
    compared.worst = heapq.nlargest(
        LISTED, compared.worst, key=lambda entry: (entry["max_abs"], entry["key"])
    )


def _name_records(difference: Difference, first: Embeddings, second: Embeddings) -> None:
    """Add to each listed key the ids of its records, where the index that knows them is there."""
    listed = [entry for compared in difference.representations.values() for entry in compared.worst]
    ids = _ids([*(entry["key"] for entry in listed), *difference.examples_only_first], first)
    ids |= _ids(difference.examples_only_second, second)
    for entry in listed:
        entry["ids"] = ids[entry["key"]]
    examples = (*difference.examples_only_first, *difference.examples_only_second)
    difference.ids_of_examples = {key: ids[key] for key in examples}


def _ids(keys: list[str], embeddings: Embeddings) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {key: [] for key in keys}
    if ids and embeddings.index and embeddings.index.is_file():
        listed = pa.array(sorted(ids))
        for lines in embeddings.records.lines(["id", "cache_key"]):
            for line in lines.filter(pc.is_in(lines["cache_key"], listed)).to_pylist():
                ids[line["cache_key"]].append(line["id"])
    return ids


def _named(key: str, ids: list[str]) -> str:
    return f"{key} ({some(ids)})" if ids else key


def in_words(difference: Difference) -> str:
    """Return the difference as a few lines of text."""
    lines = [
        f"keys: {difference.keys_both:,} in both, {difference.only_first:,} only in the first, "
        f"{difference.only_second:,} only in the second"
    ]
    ids = difference.ids_of_examples
    for which, examples in (
        ("first", difference.examples_only_first),
        ("second", difference.examples_only_second),
    ):
        lines += [f"  only in the {which}: {_named(key, ids[key])}" for key in examples[:3]]
    lines += [f"settings: {line}" for line in difference.fingerprint]
    for which, names in (
        ("first", difference.representations_only_first),
        ("second", difference.representations_only_second),
    ):
        lines += [f"{name}: only in the {which}" for name in names]
    for name, compared in difference.representations.items():
        lines.append(
            f"{name}: {compared.equal:,} equal, {compared.within:,} within the tolerance, "
            f"{compared.different:,} different; largest difference {compared.max_abs:.3g}, "
            f"smallest cosine {compared.min_cosine:.6f}"
        )
        for entry in compared.worst:
            named = _named(entry["key"], entry["ids"])
            lines.append(f"  {named}: {entry['max_abs']:.3g}, cosine {entry['cosine']:.6f}")
    return "\n".join([*lines, "equal" if difference.equal else "different"])
