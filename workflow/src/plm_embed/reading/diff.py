"""Two masters side by side: the same keys, vectors and scores, and if not, which differ and by how
much.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import SCORES, has_matrix
from plm_embed.keys import find
from plm_embed.reading.index import Rows
from plm_embed.reading.open import Embeddings

ROWS_AT_ONCE = 1 << 14
LISTED, EXAMPLES = 20, 3
"""So many of the keys that differ most, and of those that only one has, are listed."""


class Difference(NamedTuple):
    """The outcome in lines, the last of which is `equal` or `different`. equal: both have the same
    keys, representations and scores, and no number differs by more than the tolerance.
    """

    equal: bool
    text: str


def compare(first: Path, second: Path, tolerance: float) -> Difference:
    """Compare two masters (or stores), row by row; 72 bytes of memory for each key of both.

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
        for absent, place in zip(only, ("first", "second"), strict=True):
            examples = map(bytes.decode, absent[:EXAMPLES].tolist())
            lines += [f"  only in the {place}: {key}" for key in examples]
        lines += [f"settings: {line}" for line in a.fingerprint.differences(b.fingerprint)]
        mine, theirs = ({*part.names, *part.fingerprint.scores} for part in (a, b))
        lines += [f"{name}: only in the first" for name in sorted(mine - theirs)]
        lines += [f"{name}: only in the second" for name in sorted(theirs - mine)]
        equal = not (only[0].size or only[1].size or mine ^ theirs)
        for name in sorted(mine & theirs):
            gaps = _differences(a, b, name, *rows)
            same, different = (gaps == 0).sum(), (gaps > tolerance).sum()
            lines.append(
                f"{name}: {same:,} equal, {len(gaps) - same - different:,} within the tolerance, "
                f"{different:,} different; largest difference {gaps.max(initial=0):.3g}"
            )
            worst = np.argsort(-gaps, kind="stable")[: min(different, LISTED)]
            keys = map(bytes.decode, a.keys[rows[0][worst]].tolist())
            lines += [f"  {key}: {gap:.3g}" for key, gap in zip(keys, gaps[worst], strict=True)]
            equal = equal and not different
    return Difference(equal, "\n".join([*lines, "equal" if equal else "different"]))


def _differences(
    a: Embeddings, b: Embeddings, name: str, a_rows: Rows, b_rows: Rows
) -> NDArray[np.float64]:
    """Return the largest difference of two numbers of each key (k,), which has these rows. A NaN is
    infinitely far from a number, and so are vectors of another width or number of residues.
    """

    def numbers(part: Embeddings, rows: Rows) -> NDArray[np.float32]:
        values = part.scores(name, rows) if name in SCORES else part.flat(name, rows)
        return values.astype(np.float32, copy=False)

    differences = np.full(len(a_rows), np.inf)
    step = 1 if has_matrix(name) else ROWS_AT_ONCE
    for start in range(0, len(a_rows), step):
        some = slice(start, start + step)
        x, y = numbers(a, a_rows[some]), numbers(b, b_rows[some])
        if x.shape == y.shape:
            with np.errstate(invalid="ignore"):
                gaps = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
            gaps = np.where(np.isnan(gaps), np.inf, gaps).reshape(len(differences[some]), -1)
            differences[some] = gaps.max(axis=1)
    return differences
