"""The best rows of all for each query, by fp32: a thread per core reads rows, and converts and
compares them while they lie in its cache.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.io.threads import cores, one_blas_thread, spread
from plm_embed.reading.rows import Rows
from plm_embed.store.float32 import all_finite, as_float32

if TYPE_CHECKING:
    from plm_embed.reading.vectors import Vectors

Metric = Literal["cosine", "dot", "euclidean"]
PIECE_BYTES = 5 << 18
"""Of the rows, as fp32, that are converted and compared at a time, in a core's cache."""
PIECES = 16
"""So many are read and ranked at a time, at most: fewer cost more calls."""
SCORES = 1 << 20
"""Of pairs of a row and a query, that are ranked at a time: as long as all of them may be among the
best, each takes 40 bytes.
"""
_SURELY_FINITE = 2.0**32
"""Of a sum of squares that is below it: `as_float32` makes at least 65,536 of infinity and NaN."""
_THREADS = 16
"""At most, as each takes 15 MB for 100 queries, and more for many or for vectors in float32."""


class Hits(NamedTuple):
    """Rows that may be among the best of a query, (h,) each; a larger score is better."""

    query: Rows
    row: Rows
    score: NDArray[np.float32]

    def best(self, count: int) -> "Hits":
        """So many for each query, best first; of equals the first ones stay."""
        order = np.lexsort((-self.score, self.query))
        query = self.query[order]
        place = np.arange(len(query)) - np.searchsorted(query, query)
        kept = order[place < count]
        return Hits(self.query[kept], self.row[kept], self.score[kept])

    def with_more(self, more: "Hits") -> "Hits":
        return Hits(
            np.concatenate([self.query, more.query]),
            np.concatenate([self.row, more.row]),
            np.concatenate([self.score, more.score]),
        )


@dataclass(frozen=True)
class Scan:
    """Compares vectors (n, D) with queries (q, D) by a metric, and keeps some rows for each."""

    embeddings: "Vectors"
    name: str
    metric: Metric
    queries: NDArray[np.float32]
    kept: int

    def best(self) -> Rows:
        """(q, kept), best first. StoreError for numbers that are not finite."""
        count = len(self.queries)
        rows = max(min(PIECES, SCORES // (count * self._piece)), 1) * self._piece
        turned = np.array(self.queries.T, order="C")
        if self.metric == "euclidean":
            turned *= 2  # 2 x.y - y.y: of -|x - y|^2 what differs from row to row
        every = np.repeat(np.arange(count), self.kept)
        best = Hits(every, np.full(every.shape, -1), np.full(every.shape, -np.inf, np.float32))
        worst = np.full(count, -np.inf, np.float32)

        def better(start: int) -> Hits:
            scores = self._scores(start, min(start + rows, len(self.embeddings)), turned)
            at = np.flatnonzero(scores > worst)
            row, query = np.divmod(at, count)
            hits = Hits(query, start + row, scores.ravel()[at])
            return hits.best(self.kept) if len(at) > len(every) else hits

        with one_blas_thread() as alone:
            threads = min(cores(), _THREADS) if alone else 2  # one reads while one multiplies
            # in the order of the rows, so that of equals the first ones stay
            for hits in spread(better, range(0, len(self.embeddings), rows), threads):
                if len(hits.row):
                    best = best.with_more(hits).best(self.kept)
                    worst[:] = best.score.reshape(count, self.kept)[:, -1]
        if (best.row < 0).any():
            raise self._not_finite()
        return best.row.reshape(count, self.kept)

    @property
    def _piece(self) -> int:
        """Rows of a piece: whole groups of 64, which the processor compares all in one way."""
        return max(PIECE_BYTES // (4 * self.embeddings.dim) // 64, 1) * 64

    def _scores(self, start: int, stop: int, turned: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, q) of rows start to stop, larger for nearer ones. What all rows of a query have in
        common is left out.
        """
        vectors = self.embeddings.rows(range(start, stop), self.name)
        count, piece = len(vectors), self._piece
        room = np.empty((piece, vectors.shape[1]), np.float32)
        scores = np.empty((-(-count // piece) * piece, turned.shape[1]), np.float32)
        squares = np.empty(len(scores), np.float32)
        for first in range(0, count, piece):
            part = vectors[first : first + piece]
            block = as_float32(part, room[: len(part)])
            if len(block) < piece:  # equal rows have equal scores in products of one shape
                block = np.pad(block, ((0, piece - len(block)), (0, 0)))
            np.matmul(block, turned, out=scores[first : first + piece])
            np.einsum("ij,ij->i", block, block, out=squares[first : first + piece])
        if not squares.max(initial=0) < _SURELY_FINITE and not (
            all_finite(vectors) and np.isfinite(squares).all()
        ):
            raise self._not_finite()
        if self.metric == "cosine":
            scores /= np.sqrt(np.where(squares > 0, squares, 1))[:, None]  # zeros are like nothing
        elif self.metric == "euclidean":
            scores -= squares[:, None]
        return scores[:count]

    def _not_finite(self) -> StoreError:
        return StoreError(
            f"{self.embeddings.path}: holds numbers that are not finite, or whose squares are not",
            remedy="run `plm-embed validate`",
            path=self.embeddings.path,
        )
