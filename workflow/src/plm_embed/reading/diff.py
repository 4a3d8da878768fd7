"""Two masters side by side: the same keys, vectors and scores, and if not, which differ and by how
much.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import SCORES, has_matrix
from plm_embed.keys import find
from plm_embed.reading.index import Rows
from plm_embed.reading.open import Embeddings
from plm_embed.store.hdf5 import Array
from plm_embed.wording import some

_KEYS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 64 << 20
LISTED = 20
"""So many keys, and so many of the vectors that differ most, are listed."""


class Differing(NamedTuple):
    """A key whose numbers differ: their largest difference, NaN counting as infinite."""

    max_abs: float
    key: str
    cosine: float


@dataclass
class Compared:
    """Differences of one representation or score, over the keys that both masters have.

    equal: the same numbers; within: different ones, but by no more than the tolerance; different:
    the rest. max_abs and min_cosine are over all; worst: the different ones that differ most.
    """

    equal: int = 0
    within: int = 0
    different: int = 0
    max_abs: float = 0.0
    min_cosine: float = 1.0
    worst: list[Differing] = field(default_factory=list)

    def add(self, keys: list[str], largest: Array, cosines: Array, tolerance: float) -> None:
        """Count keys (k,) by their largest differences and their cosines (k,)."""
        self.equal += int((largest == 0).sum())
        self.within += int(((largest > 0) & (largest <= tolerance)).sum())
        self.different += int((largest > tolerance).sum())
        self.max_abs = max(self.max_abs, float(largest.max()))
        self.min_cosine = min(self.min_cosine, float(cosines.min()))
        worst = np.argsort(-largest, kind="stable")[:LISTED]
        self.worst += [
            Differing(float(largest[place]), keys[place], float(cosines[place]))
            for place in worst[largest[worst] > tolerance].tolist()
        ]
        self.worst = sorted(self.worst, reverse=True)[:LISTED]


@dataclass
class Difference:
    """Differences of two masters: how many keys both have, and how many only one, with the first of
    them; settings; representations and scores that only one has, and Compared by the others; ids:
    of the records of the keys that are named.
    """

    keys_both: int
    only: tuple[int, int]
    examples: tuple[list[str], list[str]]
    fingerprint: list[str]
    representations_only: tuple[list[str], list[str]]
    representations: dict[str, Compared] = field(default_factory=dict)
    ids: dict[str, list[str]] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Return whether both have the same keys, representations and scores, and no number differs
        by more than the tolerance.
        """
        lacking = any(self.only) or any(self.representations_only)
        return not (lacking or any(part.different for part in self.representations.values()))


def compare(first: Path, second: Path, tolerance: float) -> Difference:
    """Compare two masters (or stores), row by row; 64 bytes of memory for each key of both.

    tolerance: the largest difference of two numbers that counts as equal. NaN equals NaN.
    """
    with Embeddings(first) as a, Embeddings(second) as b:
        places, both = find(b.keys, a.keys)
        rows = np.flatnonzero(both), places[both]
        only = np.delete(a.keys, rows[0]), np.delete(b.keys, rows[1])
        examples = [keys[:LISTED].astype(str).tolist() for keys in only]
        names = [{*part.names, *part.fingerprint.scores} for part in (a, b)]
        difference = Difference(
            len(rows[0]),
            (len(only[0]), len(only[1])),
            (examples[0], examples[1]),
            a.fingerprint.differences(b.fingerprint),
            (sorted(names[0] - names[1]), sorted(names[1] - names[0])),
        )
        for name in sorted(names[0] & names[1]):
            if a.dim != b.dim and len(a) and len(b):
                raise PlmEmbedError(f"{a.path} has {a.dim} numbers per vector, {b.path} {b.dim}")
            compared = difference.representations[name] = Compared()
            for keys, largest, cosines in _distances((a, b), name, rows):
                compared.add(keys, largest, cosines, tolerance)
        worst = [entry.key for part in difference.representations.values() for entry in part.worst]
        difference.ids = _ids([*worst, *examples[0]], a) | _ids(examples[1], b)
    return difference


def _distances(
    pair: tuple[Embeddings, Embeddings], name: str, rows: tuple[Rows, Rows]
) -> Iterator[tuple[list[str], Array, Array]]:
    """Yield, for some of the keys that have these rows in both: keys, the largest difference of
    their numbers, and their cosines. A sequence with other numbers of residues is infinitely far.
    """

    def numbers(part: Embeddings, part_rows: Rows) -> NDArray[np.float32]:
        if name in SCORES:
            return part.scores(name, part_rows)[:, None]
        return part.flat(name, part_rows).astype(np.float32, copy=False)

    for start in range(0, len(rows[0]), _KEYS_AT_ONCE):
        block = [part_rows[start : start + _KEYS_AT_ONCE] for part_rows in rows]
        keys = pair[0].keys[block[0]].astype(str)
        residues = [np.ones(len(keys), np.int64)] * 2
        if has_matrix(name):
            residues = [
                part.residues_at(part_rows) for part, part_rows in zip(pair, block, strict=True)
            ]
        same = residues[0] == residues[1]
        if len(unlike := keys[~same]):
            yield unlike.tolist(), np.full(len(unlike), np.inf), np.zeros(len(unlike))
        alike, counts = np.flatnonzero(same), residues[0]
        sizes = np.cumsum(counts[alike] * 4 * pair[0].dim) // _BYTES_AT_ONCE
        for piece in filter(len, np.split(alike, np.flatnonzero(np.diff(sizes)) + 1)):
            a, b = (
                numbers(part, part_rows[piece]) for part, part_rows in zip(pair, block, strict=True)
            )
            heads = np.cumsum(counts[piece]) - counts[piece]
            with np.errstate(invalid="ignore"):
                largest = np.where(np.isnan(a) & np.isnan(b), 0, np.abs(a - b)).max(axis=1)
            largest = np.maximum.reduceat(np.where(np.isnan(largest), np.inf, largest), heads)
            yield keys[piece].tolist(), largest, _cosines(a, b, heads)


def _cosines(a: Array, b: Array, heads: Rows) -> NDArray[np.float64]:
    """Return the cosine of each key's numbers, which begin at the rows `heads`; 1 where both are
    zero, 0 where NaN or one is zero.
    """
    pairs = (a, a), (b, b), (a, b)
    products = (np.einsum("ij,ij->i", *pair, dtype=np.float64) for pair in pairs)
    squares, others, both = (np.add.reduceat(product, heads) for product in products)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.nan_to_num(np.minimum(both / np.sqrt(squares * others), 1))
    return np.where((squares == 0) & (others == 0), 1.0, cosine)


def _ids(keys: list[str], embeddings: Embeddings) -> dict[str, list[str]]:
    """Return the ids of the records of each key, where the index is there."""
    ids: dict[str, list[str]] = {key: [] for key in keys}
    if ids and embeddings.index and embeddings.index.is_file():
        listed = pa.array(sorted(ids))
        for lines in embeddings.records.lines(["id", "cache_key"]):
            for line in lines.filter(pc.is_in(lines["cache_key"], listed)).to_pylist():
                ids[line["cache_key"]].append(line["id"])
    return ids


def in_words(difference: Difference) -> str:
    """Return the difference as lines; the last one is `equal` or `different`."""

    def named(key: str) -> str:
        return f"{key} ({some(ids)})" if (ids := difference.ids[key]) else key

    only = difference.only
    lines = [
        f"keys: {difference.keys_both:,} in both, {only[0]:,} only in the first, {only[1]:,} only "
        "in the second"
    ]
    for keys, place in zip(difference.examples, ("first", "second"), strict=True):
        lines += [f"  only in the {place}: {named(key)}" for key in keys[:3]]
    lines += [f"settings: {line}" for line in difference.fingerprint]
    for names, place in zip(difference.representations_only, ("first", "second"), strict=True):
        lines += [f"{name}: only in the {place}" for name in names]
    for name, compared in difference.representations.items():
        cosine = "" if name in SCORES else f", smallest cosine {compared.min_cosine:.6f}"
        lines.append(
            f"{name}: {compared.equal:,} equal, {compared.within:,} within the tolerance, "
            f"{compared.different:,} different; largest difference {compared.max_abs:.3g}{cosine}"
        )
        for entry in compared.worst:
            cosine = "" if name in SCORES else f", cosine {entry.cosine:.6f}"
            lines.append(f"  {named(entry.key)}: {entry.max_abs:.3g}{cosine}")
    return "\n".join([*lines, "equal" if difference.equal else "different"])
