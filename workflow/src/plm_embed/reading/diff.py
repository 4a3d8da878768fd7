"""Two masters side by side: the same keys, vectors and scores, and if not, which differ and by how
much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import SCORES, has_matrix
from plm_embed.keys import Keys, find
from plm_embed.reading.index import Rows
from plm_embed.reading.open import Embeddings
from plm_embed.store.hdf5 import Array
from plm_embed.wording import some

_VECTORS_AT_ONCE, _MATRICES_AT_ONCE = 1 << 14, 1 << 4
LISTED, EXAMPLES = 20, 3
"""So many of the keys that differ most, and of those that only one has, are listed."""


class Difference(NamedTuple):
    """The outcome in lines, the last of which is `equal` or `different`. equal: both have the same
    keys, representations and scores, and no number differs by more than the tolerance.
    """

    equal: bool
    text: str


@dataclass
class _Compared:
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


def compare(first: Path, second: Path, tolerance: float) -> Difference:
    """Compare two masters (or stores), row by row; 64 bytes of memory for each key of both.

    tolerance: the largest difference of two numbers that counts as equal. NaN equals NaN.
    """
    with Embeddings(first) as a, Embeddings(second) as b:
        places, both = find(b.keys, a.keys)
        rows = np.flatnonzero(both), places[both]
        only = np.delete(a.keys, rows[0]), np.delete(b.keys, rows[1])
        lines = [
            f"keys: {len(rows[0]):,} in both, {len(only[0]):,} only in the first, {len(only[1]):,} "
            "only in the second"
        ]
        for part, keys, place in ((a, only[0], "first"), (b, only[1], "second")):
            named = _with_ids(keys[:EXAMPLES].astype(str).tolist(), part)
            lines += [f"  only in the {place}: {key}" for key in named]
        lines += [f"settings: {line}" for line in a.fingerprint.differences(b.fingerprint)]
        mine, theirs = ({*part.names, *part.fingerprint.scores} for part in (a, b))
        lines += [f"{name}: only in the first" for name in sorted(mine - theirs)]
        lines += [f"{name}: only in the second" for name in sorted(theirs - mine)]
        equal = not (only[0].size or only[1].size or mine ^ theirs)
        for name in sorted(mine & theirs):
            if a.dim != b.dim and len(a) and len(b):
                raise PlmEmbedError(f"{a.path} has {a.dim} numbers per vector, {b.path} {b.dim}")
            compared = _Compared()
            for keys, largest, cosines in _distances(a, b, name, *rows):
                compared.add(keys, largest, cosines, tolerance)
            cosine = "" if name in SCORES else f", smallest cosine {compared.min_cosine:.6f}"
            lines.append(
                f"{name}: {compared.equal:,} equal, {compared.within:,} within the tolerance, "
                f"{compared.different:,} different; largest difference {compared.max_abs:.3g}"
                f"{cosine}"
            )
            named = _with_ids([key for _, key in compared.worst], a)
            for (most, _), key in zip(compared.worst, named, strict=True):
                lines.append(f"  {key}: {most:.3g}")
            equal = equal and not compared.different
    return Difference(equal, "\n".join([*lines, "equal" if equal else "different"]))


def _with_ids(keys: Sequence[str], embeddings: Embeddings) -> list[str]:
    """Return the keys, followed by the ids of their records where the index is there."""
    ids: dict[str, list[str]] = {key: [] for key in keys}
    if keys and embeddings.index and embeddings.index.is_file():
        rows = np.searchsorted(embeddings.keys, np.array(sorted(keys), "S64"))
        for line in embeddings.records.lines_of(rows).to_pylist():
            ids[line["cache_key"]].append(line["id"])
    return [f"{key} ({some(ids[key])})" if ids[key] else key for key in keys]


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
