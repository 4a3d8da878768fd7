"""Two masters side by side: the same keys, vectors and scores, and if not, which differ and by how
much.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import SCORES, has_matrix
from plm_embed.keys import Keys, find
from plm_embed.reading.index import Rows
from plm_embed.reading.open import Embeddings
from plm_embed.store.hdf5 import Array
from plm_embed.wording import some

_VECTORS_AT_ONCE, _MATRICES_AT_ONCE = 1 << 14, 1 << 4
LISTED = 20
"""So many keys, and so many of those that differ most, are listed."""


@dataclass
class Compared:
    """Differences of one representation or score, over the keys that both masters have.

    equal: the same numbers; within: different ones, but by no more than the tolerance; different:
    the rest. max_abs and min_cosine are over all; worst: the keys that differ most, each with its
    largest difference of two numbers. NaN counts as infinitely far from a number.
    """

    equal: int = 0
    within: int = 0
    different: int = 0
    max_abs: float = 0.0
    min_cosine: float = 1.0
    worst: list[tuple[float, str]] = field(default_factory=list)

    def add(self, keys: Keys, largest: Array, cosines: Array, tolerance: float) -> None:
        """Count keys (k,) by their largest differences and their cosines (k,)."""
        self.equal += int((largest == 0).sum())
        self.within += int(((largest > 0) & (largest <= tolerance)).sum())
        self.different += int((largest > tolerance).sum())
        self.max_abs = max(self.max_abs, float(largest.max()))
        self.min_cosine = min(self.min_cosine, float(cosines.min()))
        worst = np.argsort(-largest, kind="stable")[:LISTED]
        worst = worst[largest[worst] > tolerance]
        pairs = zip(largest[worst].tolist(), keys[worst].astype(str).tolist(), strict=True)
        self.worst = sorted([*self.worst, *pairs], reverse=True)[:LISTED]


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
            for keys, largest, cosines in _distances(a, b, name, *rows):
                compared.add(keys, largest, cosines, tolerance)
        worst = [key for part in difference.representations.values() for _, key in part.worst]
        difference.ids = _ids([*worst, *examples[0]], a) | _ids(examples[1], b)
    return difference


def _distances(
    a: Embeddings, b: Embeddings, name: str, a_rows: Rows, b_rows: Rows
) -> Iterator[tuple[Keys, Array, Array]]:
    """Yield, for some of the keys that have these rows: keys, the largest difference of their
    numbers, and their cosines. A sequence with other numbers of residues is infinitely far.
    """

    def numbers(part: Embeddings, rows: Rows) -> NDArray[np.float32]:
        if name in SCORES:
            return part.scores(name, rows)[:, None]
        return part.flat(name, rows).astype(np.float32, copy=False)

    step = _MATRICES_AT_ONCE if has_matrix(name) else _VECTORS_AT_ONCE
    for start in range(0, len(a_rows), step):
        mine, theirs = a_rows[start : start + step], b_rows[start : start + step]
        same, counts = np.ones(len(mine), np.bool_), np.ones(len(mine), np.int64)
        if has_matrix(name):
            counts = a.residues_at(mine)
            same = counts == b.residues_at(theirs)
        heads = np.cumsum(counts[same]) - counts[same]
        largest, cosines = np.full(len(mine), np.inf), np.zeros(len(mine))
        if same.any():
            x, y = numbers(a, mine[same]), numbers(b, theirs[same])
            with np.errstate(invalid="ignore"):
                gaps = np.where(np.isnan(x) & np.isnan(y), 0, np.abs(x - y)).max(axis=1)
            largest[same] = np.maximum.reduceat(np.where(np.isnan(gaps), np.inf, gaps), heads)
            cosines[same] = _cosines(x, y, heads)
        yield a.keys[mine], largest, cosines


def _cosines(x: Array, y: Array, heads: Rows) -> NDArray[np.float64]:
    """Return the cosine of each key's numbers, which begin at the rows `heads`; 1 where both are
    zero, 0 where NaN or one is zero.
    """
    products = (np.einsum("ij,ij->i", *pair, dtype=np.float64) for pair in ((x, x), (y, y), (x, y)))
    x_squares, y_squares, both = (np.add.reduceat(product, heads) for product in products)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.nan_to_num(np.minimum(both / np.sqrt(x_squares * y_squares), 1))
    return np.where((x_squares == 0) & (y_squares == 0), 1.0, cosine)


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
        lines += [f"  {named(key)}: {largest:.3g}" for largest, key in compared.worst]
    return "\n".join([*lines, "equal" if difference.equal else "different"])
